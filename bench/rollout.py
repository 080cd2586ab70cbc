"""Augur's rollouts beside transformers.generate: the same model, sizes and machine, in turns, in one run.

    python bench/rollout.py                                        # SmolLM2-135M's shape on the CPU, 32 x (64 + 64)
    python bench/rollout.py --model models/smollm2-135m-instruct
    python bench/rollout.py --device cuda --batch 256 --prompt 256 --new 256

Augur records the top-20 at every position; transformers records nothing. Both sample at temperature 1 and neither stops
early. transformers runs in each dtype asked for, and the ratio is to the better of them.
"""

import argparse
import json
import random
import subprocess
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


def random_model(directory: Path) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SMOLLM2_135M)).to(torch.bfloat16).save_pretrained(directory)


def run_augur(o: argparse.Namespace, model: str) -> float:
    """New tokens per second, prefill included: the better of two runs, as transformers' process is warm, too."""
    command = [PROGRAM, "bench", "rollout", model, "--device", o.device, "--precision", o.precision, "--json"]
    command += ["--batch", o.batch, "--prompt", o.prompt, "--new", o.new, "--support", 20, "--rounds", 2]
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["new_tokens_per_s"]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face directory (default: random weights of SmolLM2-135M's shape)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="bf16", help="Augur's: fp32, bf16 or fp8")
    parser.add_argument("--peer-dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()

    with tempfile.TemporaryDirectory() as made:
        model = o.model or made
        if not o.model:
            random_model(Path(made))
        peers = {
            dtype: AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).to(o.device).eval()
            for dtype in o.peer_dtypes
        }
        vocab = next(iter(peers.values())).config.vocab_size
        rng = random.Random(0)
        prompts = [[rng.randrange(vocab) for _ in range(o.prompt)] for _ in range(o.batch)]
        ours: list[float] = []
        theirs: dict[str, list[float]] = {dtype: [] for dtype in peers}
        for _ in range(o.rounds):  # in turns, so that a busy machine slows all of them alike
            ours.append(run_augur(o, model))
            for dtype, peer in peers.items():
                theirs[dtype].append(run_transformers(o, peer, prompts))

    best = max(ours)
    peer_best = {dtype: max(speeds) for dtype, speeds in theirs.items()}
    ratio = best / max(peer_best.values())
    if o.json:
        print(json.dumps({"augur": best, "transformers": peer_best, "ratio": ratio}))
        return
    print(f"{o.batch} x ({o.prompt} prompt + {o.new} new) on {o.device}, new tokens per second, prefill included")
    print(f"  augur {o.precision}, top-20 recorded    {best:9.0f}")
    for dtype, speed in peer_best.items():
        print(f"  transformers {dtype:<19}{speed:9.0f}")
    print(f"  ratio to the better                {ratio:9.1f}")


if __name__ == "__main__":
    main()
