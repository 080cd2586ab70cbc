"""Augur's rollouts and transformers.generate: the same model, sizes and machine, in turns, in one run.

    python bench/rollout.py                                        # SmolLM2-135M's shape on the CPU, 32 x (64 + 64)
    python bench/rollout.py --threads 1 2 4 8 16                   # the curve over threads
    python bench/rollout.py --cpu avx2 avx512 amx --threads 2      # Augur's kernels for each set of instructions
    python bench/rollout.py --model models/smollm2-135m-instruct
    python bench/rollout.py --device cuda --batch 256 --prompt 256 --new 256

Augur records the top-20 at every position; transformers records nothing. Both sample at temperature 1 and neither stops
early. transformers runs in each dtype asked for, and the ratio is to the better of them. With --cpu both have the named
instructions and no larger ones, in a process of its own for each name.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

PROGRAM = Path(__file__).resolve().parents[1] / "build" / "augur"
SMOLLM2_135M = dict(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
)

# What keeps torch, oneDNN and MKL to a set of instructions. They read it when they are loaded.
PEER_ENVIRONMENT = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx512bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS": "AVX512_E3"},
    "amx": {},
}


def random_model(directory: Path) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SMOLLM2_135M)).to(torch.bfloat16).save_pretrained(directory)


def run_augur(o: argparse.Namespace, model: str, threads: int) -> dict:
    """The figures of `augur bench rollout`: the better of two runs, as transformers' process is warm, too."""
    command = [PROGRAM, "bench", "rollout", model, "--device", o.device, "--precision", o.precision, "--json"]
    command += ["--batch", o.batch, "--prompt", o.prompt, "--new", o.new, "--support", 20, "--rounds", 2]
    command += ["--threads", threads]
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip())
    return json.loads(done.stdout)


def run_transformers(o: argparse.Namespace, model: torch.nn.Module, prompts: list[list[int]]) -> float:
    """New tokens per second, prefill included."""
    ids = torch.tensor(prompts, device=o.device)
    start = time.perf_counter()
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=o.new,
        min_new_tokens=o.new,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=0,
    )
    if o.device != "cpu":
        torch.cuda.synchronize()
    return len(prompts) * (out.shape[1] - ids.shape[1]) / (time.perf_counter() - start)


def measure(o: argparse.Namespace, model: str, peers: dict[str, torch.nn.Module]) -> list[dict]:
    """A row for each number of threads."""
    vocab_size = next(iter(peers.values())).config.vocab_size
    rng = random.Random(0)
    prompts = [[rng.randrange(vocab_size) for _ in range(o.prompt)] for _ in range(o.batch)]
    rows = []
    for threads in o.threads:
        torch.set_num_threads(threads)
        ours: list[dict] = []
        theirs: dict[str, list[float]] = {dtype: [] for dtype in peers}
        for _ in range(o.rounds):  # in turns, so that a busy machine slows all of them alike
            ours.append(run_augur(o, model, threads))
            for dtype, peer in peers.items():
                theirs[dtype].append(run_transformers(o, peer, prompts))
        peer_best = {dtype: max(speeds) for dtype, speeds in theirs.items()}
        best = max(ours, key=lambda run: run["new_tokens_per_s"])
        speed = best["new_tokens_per_s"]
        row = {"threads": threads, "cpu": best["cpu"], "augur": speed, "transformers": peer_best}
        rows.append(row | {"ratio": speed / max(peer_best.values())})
    return rows


def measure_here(o: argparse.Namespace) -> list[dict]:
    with tempfile.TemporaryDirectory() as made:
        model = o.model or made
        if not o.model:
            random_model(Path(made))
        peers = {
            dtype: AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).to(o.device).eval()
            for dtype in o.peer_dtypes
        }
        return measure(o, model, peers)


def measure_each_cpu(cpus: list[str]) -> list[dict]:
    """The rows of this program with each set of instructions, which a process can choose only before it starts."""
    at = sys.argv.index("--cpu")
    others = sys.argv[1:at] + sys.argv[at + 1 + len(cpus) :]
    rows = []
    for cpu in cpus:
        command = [sys.executable, __file__, *others] + ([] if "--json" in others else ["--json"])
        environment = os.environ | {"AUGUR_CPU": cpu} | PEER_ENVIRONMENT[cpu]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
        if done.returncode != 0:
            raise SystemExit(done.returncode)
        rows += json.loads(done.stdout.splitlines()[-1])["rows"]
    return rows


def show(o: argparse.Namespace, rows: list[dict]) -> None:
    print(f"{o.batch} x ({o.prompt} prompt + {o.new} new) on {o.device}, new tokens per second, prefill included;")
    load = f"; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores" if o.device == "cpu" else ""
    print(f"augur in {o.precision} with the top-20 recorded, transformers without{load}")
    titles = ["threads", "instructions", "augur", *(f"transformers {dtype}" for dtype in o.peer_dtypes), "ratio"]
    if len(o.threads) > 1:
        titles.append("times the first")
    print("  ".join(titles))
    for row in rows:
        first = next(r for r in rows if r["cpu"] == row["cpu"])
        cells = [str(row["threads"]), row["cpu"], f"{row['augur']:.0f}"]
        cells += [f"{speed:.0f}" for speed in row["transformers"].values()] + [f"{row['ratio']:.2f}"]
        cells.append(f"{row['augur'] / first['augur']:.2f}")
        print("  ".join(cell.rjust(len(title)) for cell, title in zip(cells, titles, strict=False)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face directory (default: random weights of SmolLM2-135M's shape)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="bf16", help="Augur's: fp32, bf16 or fp8")
    parser.add_argument("--peer-dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", nargs="+", type=int, default=[len(os.sched_getaffinity(0))], help="of both")
    parser.add_argument("--cpu", nargs="+", choices=PEER_ENVIRONMENT, help="default: the best there is")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()

    rows = measure_each_cpu(o.cpu) if o.cpu else measure_here(o)
    if o.json:
        print(json.dumps(rows[0] | {"rows": rows, "load": os.getloadavg()[0]}))
    else:
        show(o, rows)


if __name__ == "__main__":
    main()
