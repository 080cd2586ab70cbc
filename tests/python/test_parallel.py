"""N processes that torchrun starts do what one does: the same figures, checkpoints that any number reads."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from conftest import ROOT, run_augur
from train_runs import (
    make_guesser,
    make_moe_policy,
    make_policy,
    read_lines,
    read_metrics,
    small_config,
    without_times,
    write_config,
    write_guesses,
)

TINY = ROOT / "models" / "tiny"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
# What torchrun passes on must not come from an outer one.
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    ENVIRONMENT.pop(name, None)


def start_ranks(count: int, *args, launcher: tuple = (), paths: str = "", **kwargs) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", *launcher]
    return subprocess.Popen(
        [*command, "-m", "augur", *map(str, args)],
        env=ENVIRONMENT | {"PYTHONPATH": paths + ENVIRONMENT["PYTHONPATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def run_ranks(count: int, *args, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess:
    process = start_ranks(count, *args)
    out, err = process.communicate(stdin, timeout=300)
    if check and process.returncode != 0:
        raise AssertionError(
            f"{count} ranks of augur {' '.join(map(str, args))} ended with {process.returncode}: {err}"
        )
    return subprocess.CompletedProcess(args, process.returncode, out, err)


# One response in each forward and sums whose order does not matter: a response's gradient is then the same wherever it
# is made, and so is what follows.
EXACT_SUMS = dict(train__gradient_dtype="fp64", train__micro_tokens=1)


def assert_close(run: Path, expected: Path, exact: bool = True) -> None:
    """Every figure but times: to float64's rounding with EXACT_SUMS, otherwise to float32's."""
    lines, truths = (without_times(read_metrics(directory)) for directory in (run, expected))
    assert [line["step"] for line in lines] == [line["step"] for line in truths]
    for line, truth in zip(lines, truths, strict=True):
        assert line["data"].keys() == truth["data"].keys()
        for name, value in truth["data"].items():
            # Differences between trainer and engine are rounding and nothing else; those of log-probs carry theirs.
            small = name in ("actor/ppo_kl", "audit/delta_divergence")
            absolute = 0 if exact else 5e-6 if name.startswith("mismatch") else 5e-7 if small else 1e-7
            close = pytest.approx(value, rel=1e-12 if exact else 1e-5, abs=absolute)
            assert line["data"][name] == close, (line["step"], name)


def assert_same_weights(run: Path, expected: Path) -> None:
    weights, truth = (load_file(next(path.glob("*/*model.safetensors"))) for path in (run, expected))
    assert weights.keys() == truth.keys()
    for name, tensor in truth.items():
        assert weights[name].equal(tensor), name


@pytest.fixture(scope="module")
def guesser(tmp_path_factory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("guesser")
    return make_guesser(directory / "model"), write_guesses(directory / "guesses.jsonl")


def rl_config(tmp_path: Path, guesser: tuple[Path, Path], name: str, **changes) -> Path:
    """Five steps with everything that looks at the whole batch: three prompts a minibatch, dynamic sampling,
    evaluation, a KL penalty, an audit."""
    settings = dict(
        data__train=f"[{guesser[1]}]", rollout__prompts=6, rollout__group=3, train__minibatch=3, train__epochs=2,
        train__steps=5, train__lr=0.002, algorithm__dynamic_sampling="true", algorithm__kl_coef=0.1,
        algorithm__anchor="recomputed", train__micro_tokens=12, audit__every=2, mask__delta=0.001,
        eval__files=f"[{guesser[1]}]", eval__every=2, eval__samples=2, checkpoint__every=2, checkpoint__keep=0,
        log__console="false", log__tokens=3,
    )  # fmt: skip
    return write_config(tmp_path / f"{name}.yaml", guesser[0], tmp_path / name, **(settings | changes))


@pytest.fixture(scope="module")
def alone(tmp_path_factory, guesser) -> Path:
    directory = tmp_path_factory.mktemp("alone")
    run_augur("train", rl_config(directory, guesser, "run", **EXACT_SUMS))
    return directory / "run"


@pytest.mark.parametrize(
    ("ranks", "shard"),
    [
        pytest.param(ranks, shard, marks=[] if (ranks, shard) == (2, "full") else pytest.mark.slow)
        for ranks in (1, 2, 3, 4)
        for shard in ("none", "states", "full")
    ],
)
def test_any_number_of_ranks_gives_the_figures_of_one(tmp_path, guesser, alone, ranks, shard):
    done = run_ranks(ranks, "train", rl_config(tmp_path, guesser, "run", parallel__shard=shard, **EXACT_SUMS))
    run = tmp_path / "run"
    assert_close(run, alone)
    assert_same_weights(run, alone)
    assert done.stdout.count("trained 5 steps") == 1
    # The first step's responses to the bit, by what the viewer shows of them; decisions are those of all ranks.
    first, truth = (
        [line for line in read_lines(directory / "tokens.jsonl") if line["step"] == 1] for directory in (run, alone)
    )
    assert len(first) == 3
    for line, expected in zip(first, truth, strict=True):
        assert [t["id"] for t in line["tokens"]] == [t["id"] for t in expected["tokens"]]
        assert line["prompt"] == expected["prompt"] and line["reward"] == expected["reward"]
    points, expected = (read_lines(directory / "points.jsonl") for directory in (run, alone))
    assert [(p["step"], p["tokens"], p["outside"]) for p in points] == [
        (p["step"], p["tokens"], p["outside"]) for p in expected
    ]
    figures, truth = (read_metrics(directory)[-1]["data"] for directory in (run, alone))
    share = {"none": 1, "states": (1 + 2 / ranks) / 3, "full": 1 / ranks}[shard]
    assert share <= figures["perf/state_memory_gb"] / truth["perf/state_memory_gb"] < 1.05 * share
    # The rollout's copy is given back while the step learns.
    assert truth["perf/rollout_weights_gb"] > 0
    whole = shard != "full" or ranks == 1
    assert figures["perf/rollout_weights_gb"] == (truth["perf/rollout_weights_gb"] if whole else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "shard"), [(2, "none"), (3, "states"), (4, "full")])
def test_several_responses_in_a_forward_give_them_within_rounding(tmp_path, guesser, ranks, shard):
    run_augur("train", rl_config(tmp_path, guesser, "alone"))
    run_ranks(ranks, "train", rl_config(tmp_path, guesser, "run", parallel__shard=shard))
    assert_close(tmp_path / "run", tmp_path / "alone", exact=False)
    weights, truth = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "alone"))
    for name, tensor in truth.items():
        assert weights[name].allclose(tensor, rtol=1e-4, atol=1e-6), name


@pytest.mark.slow
def test_replicas_divide_the_state_within_groups(tmp_path, guesser, alone):
    changes = dict(parallel__shard="full", parallel__replicas=2)
    run_ranks(4, "train", rl_config(tmp_path, guesser, "run", **changes, **EXACT_SUMS))
    assert_close(tmp_path / "run", alone)
    parts = sorted(p.name for p in (tmp_path / "run" / "checkpoints" / "global_step_4").glob("tensors*"))
    assert parts == [f"tensors-0000{r}-of-00002.safetensors" for r in (1, 2)]
    bad = run_ranks(2, "train", rl_config(tmp_path, guesser, "bad", parallel__replicas=3), check=False)
    assert "augur: rank 0: parallel.replicas: is 3, which does not divide the 2 ranks" in bad.stderr


@pytest.mark.slow
def test_the_same_number_twice_gives_the_same_bits(tmp_path, guesser):
    for name in ("one", "two"):
        run_ranks(3, "train", rl_config(tmp_path, guesser, name, parallel__shard="states", train__steps=3))
    assert without_times(read_metrics(tmp_path / "one")) == without_times(read_metrics(tmp_path / "two"))


@pytest.mark.slow
def test_a_run_goes_on_with_any_number_of_ranks(tmp_path, guesser, alone):
    """Four ranks, then three, then one; and what four wrote is exported by one."""
    config = rl_config(tmp_path, guesser, "run", **EXACT_SUMS)
    run = tmp_path / "run"
    run_ranks(4, "train", config, "train.steps=2", "parallel.shard=states")
    parts = sorted((run / "checkpoints" / "global_step_2").glob("tensors*"))
    assert [p.name for p in parts] == [f"tensors-0000{r}-of-00004.safetensors" for r in range(1, 5)]
    sizes = [p.stat().st_size for p in parts]
    whole = (alone / "checkpoints" / "global_step_2" / "tensors.safetensors").stat().st_size
    assert max(sizes) < 0.3 * whole and 0.95 * whole < sum(sizes) < 1.1 * whole
    run_augur("export", run, tmp_path / "exported")
    run_augur("export", alone / "checkpoints" / "global_step_2", tmp_path / "truth")
    exported, truth = (load_file(tmp_path / name / "model.safetensors") for name in ("exported", "truth"))
    assert all(exported[name].equal(tensor) for name, tensor in truth.items())
    run_ranks(3, "train", config, "train.steps=4", "parallel.shard=full")
    run_augur("train", config)
    assert_close(run, alone)
    assert_same_weights(run, alone)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "shard"), [(2, "none"), (3, "full"), (4, "states")])
def test_sft_on_ranks_gives_the_figures_of_one(tmp_path, ranks, shard):
    policy = make_policy(tmp_path / "model")
    for name in ("alone", "ranks"):
        lines = [
            f"run: {{dir: {tmp_path / name}, threads: 1}}", f"model: {{path: {policy}, precision: fp32}}",
            "data: {train: ['task:sort:numbers=4:count=64:seed=3']}", "checkpoint: {every: 2}",
            "log: {console: false}", f"parallel: {{shard: {shard if name == 'ranks' else 'none'}}}",
            "sft: {steps: 5, batch: 7, lr: 0.001, micro_tokens: 1, gradient_dtype: fp64}",
        ]  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    run_augur("sft", tmp_path / "alone.yaml")
    run_ranks(ranks, "sft", tmp_path / "ranks.yaml")
    assert_close(tmp_path / "ranks", tmp_path / "alone")
    assert_same_weights(tmp_path / "ranks", tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "ranks", "changes"),
    [
        (make_moe_policy, 2, dict(parallel__shard="full", algorithm__load_balance_coef=0.1)),
        (make_moe_policy, 3, dict(parallel__shard="states", rollout__replay_routing="true")),
        (make_policy, 3, dict(parallel__shard="states", lora__rank=4)),
        (make_policy, 2, dict(parallel__shard="full", lora__rank=4)),
    ],
    ids=["experts-full", "experts-states", "lora-states", "lora-full"],
)
def test_experts_and_adapters_on_ranks_give_the_figures_of_one(tmp_path, make, ranks, changes):
    policy = make(tmp_path / "model")
    settings = dict(train__steps=5, train__lr=0.001, reward__overlong_buffer=8, log__console="false", **EXACT_SUMS)
    alone = settings | {
        key: value for key, value in changes.items() if key.startswith(("lora", "algorithm", "rollout"))
    }
    run_augur("train", write_config(tmp_path / "alone.yaml", policy, tmp_path / "alone", **alone))
    run_ranks(ranks, "train", write_config(tmp_path / "ranks.yaml", policy, tmp_path / "ranks", **settings, **changes))
    assert_close(tmp_path / "ranks", tmp_path / "alone")
    assert_same_weights(tmp_path / "ranks", tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "shard"), [(2, "full"), (3, "states")])
def test_states_in_bf16_are_rounded_alike_on_any_number_of_ranks(tmp_path, guesser, ranks, shard):
    """The draw that rounds an element follows from its place among all, whoever has it."""
    changes = dict(train__optimizer_dtype="bf16", train__steps=3, algorithm__dynamic_sampling="false", audit__every=0)
    run_augur("train", rl_config(tmp_path, guesser, "alone", **changes))
    run_ranks(ranks, "train", rl_config(tmp_path, guesser, "ranks", parallel__shard=shard, **changes))
    norms = [
        [line["data"]["actor/grad_norm"] for line in read_metrics(tmp_path / name)[1:]] for name in ("ranks", "alone")
    ]
    assert norms[0] == pytest.approx(norms[1], rel=2e-5)


@pytest.mark.slow
def test_a_budget_of_tokens_outside_and_the_mismatch_are_those_of_all_ranks(tmp_path, guesser):
    """From the second step on updates begin off policy, so that both are more than rounding."""
    changes = dict(
        mask__outside_budget=0.2, rollout__staleness=1, train__minibatch=0, train__epochs=1, train__steps=3,
        train__lr=0.02, algorithm__anchor="rollout", algorithm__dynamic_sampling="false", audit__every=0,
        eval__files="[]", checkpoint__every=0,
    )  # fmt: skip
    run_augur("train", rl_config(tmp_path, guesser, "alone", **changes))
    run_ranks(2, "train", rl_config(tmp_path, guesser, "ranks", **changes))
    for line, truth in zip(*(read_metrics(tmp_path / name)[1:] for name in ("ranks", "alone")), strict=True):
        assert truth["data"]["mask/delta"] > 1e-4
        names = [name for name in truth["data"] if name.startswith(("mask/", "mismatch/"))]
        for name in names:
            assert line["data"][name] == pytest.approx(truth["data"][name], rel=1e-3), (line["step"], name)


REWARD = """
def score(data_source, solution_str, ground_truth, extra_info):
    if len(solution_str.split()) == 2:
        raise ValueError("two words")
    return {"score": float(solution_str.strip() == ground_truth), "length": len(solution_str)}
"""


@pytest.mark.slow
def test_what_a_function_says_of_responses_reaches_the_first_rank(tmp_path, guesser):
    """Scores, failures and figures of its own."""
    (tmp_path / "reward.py").write_text(REWARD)
    changes = dict(reward__python=f"{tmp_path / 'reward.py'}:score", reward__workers=1, reward__max_errors=0.9)
    changes |= dict(train__steps=2, eval__every=1, algorithm__dynamic_sampling="false", **EXACT_SUMS)
    run_augur("train", rl_config(tmp_path, guesser, "alone", **changes))
    run_ranks(2, "train", rl_config(tmp_path, guesser, "ranks", **changes))
    truth = read_metrics(tmp_path / "alone")
    for name in ("reward/errors", "reward/length/mean", "val-aux/guess/length/mean@2", "val-aux/guess/reward_errors"):
        assert truth[-1]["data"][name] > 0
    assert_close(tmp_path / "ranks", tmp_path / "alone")


@pytest.mark.slow
def test_one_rank_of_many_can_be_measured_alone():
    flags = ["--tokens", "64", "--length", "32", "--rounds", "1", "--json"]
    figures = json.loads(run_augur("bench", "train", "--ranks", "8", "--shard", "full", *flags).stdout)
    # smollm2-135m: an eighth of weights in bf16, master weights and states.
    assert figures["weights_and_states_gib"] * 2**30 == pytest.approx(14 * 134_515_008 / 8, rel=0.01)


@pytest.mark.slow
def test_eval_generate_and_score_use_all_ranks(tmp_path):
    data = ["--data", "task:sort:numbers=4:count=5:seed=9", "--samples", "2", "--max-tokens", "12", "--threads", "1"]
    run_augur("eval", TINY, *data, "--output", tmp_path / "alone.json")
    run_ranks(2, "eval", TINY, *data, "--output", tmp_path / "ranks.json")
    assert json.loads((tmp_path / "ranks.json").read_text()) == json.loads((tmp_path / "alone.json").read_text())
    supports = [*data, "--top-logprobs", "3"]
    run_augur("generate", TINY, *supports, "--output", tmp_path / "alone.jsonl")
    run_ranks(3, "generate", TINY, *supports, "--output", tmp_path / "ranks.jsonl")
    assert (tmp_path / "ranks.jsonl").read_text() == (tmp_path / "alone.jsonl").read_text()
    lines = "".join(json.dumps({"tokens": line["tokens"]}) + "\n" for line in read_lines(tmp_path / "alone.jsonl"))
    flags = ["score", TINY, "--batch-tokens", "20"]
    truth = [json.loads(line)["logprobs"] for line in run_augur(*flags, stdin=lines).stdout.splitlines()]
    bad = run_ranks(2, *flags, stdin=lines + '{"tokens": [999999]}\n', check=False)  # the rest is answered
    found = [json.loads(line)["logprobs"] for line in bad.stdout.splitlines()]
    assert len(found) == len(truth) == 10
    for line, expected in zip(found, truth, strict=True):
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert bad.stderr.count("outside the vocabulary") == 1 and "augur: rank 0: line 11" in bad.stderr


CALLS = """
import sys
import augur
from ranks import end_rank

options = {"max_tokens": 4, "threads": 1, "device": "cpu"}
rollouts = augur.generate(sys.argv[1], ["3 1 2 =", "4 2 ="], **options)
figures = augur.evaluate(sys.argv[1], "task:sort:numbers=4:count=2", samples=1, **options)
try:
    augur.generate(sys.argv[1], ["3 1 2 ="], sampels=2, **options)
except augur.Error as error:
    found = (len(rollouts), figures.get("samples"), "did you mean" in str(error), "another rank" in str(error))
    sys.stdout.write(" ".join(map(str, found)) + "\\n")  # at once, next to the other rank's
    sys.stdout.flush()
    end_rank()
"""


def test_calls_from_python_give_the_first_rank_what_they_made(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests' / 'python'}"}
    done = subprocess.run(
        [*launcher, tmp_path / "calls.py", TINY], capture_output=True, text=True, env=environment, timeout=120
    )
    assert {"2 1 True False", "0 None False True"} <= set(done.stdout.splitlines()), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["model.path=/nothing", "run.device=cuda:99"])
def test_an_error_is_told_once_and_names_its_rank(tmp_path, guesser, wrong):
    done = run_ranks(2, "train", rl_config(tmp_path, guesser, "run"), wrong, check=False)
    assert done.returncode != 0 and not (tmp_path / "run").exists()
    assert done.stderr.count("augur: rank") == 1 and "augur: rank 0: " in done.stderr


def test_srun_starts_ranks_too(tmp_path, guesser, alone):
    processes = []
    for rank in range(2):
        slurm = dict(
            SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_NODELIST="localhost", SLURM_NODEID="0", SLURM_PROCID=str(rank),
            SLURM_LOCALID=str(rank), SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="2",
        )  # fmt: skip
        command = [sys.executable, "-m", "augur", "train", str(rl_config(tmp_path, guesser, "run", **EXACT_SUMS))]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        processes.append(subprocess.Popen(command, env=ENVIRONMENT | slurm, **pipes))
    first, other = (process.communicate(timeout=120)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0], first + other
    assert "trained 5 steps" in first and "trained" not in other
    assert "parallel.shard: none, with which" in first  # auto, of a small model
    assert_close(tmp_path / "run", alone)


def wait_for_step(run: Path, step: int, process: subprocess.Popen) -> None:
    while process.poll() is None:
        if any(line["step"] == step for line in read_lines(run / "metrics.jsonl")):
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def ranks_of(process: subprocess.Popen) -> list[int]:
    """The processes torchrun started, in the order of their ranks."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            environment = (stat.parent / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if parent == process.pid:
            rank = next((int(v[5:]) for v in environment if v.startswith(b"RANK=")), None)
            found.append((rank, int(stat.parent.name)))
    return [pid for _, pid in sorted(found)]


def long_config(tmp_path: Path, guesser: tuple[Path, Path], name: str, **changes) -> Path:
    settings = dict(
        algorithm__dynamic_sampling="false", audit__every=0, checkpoint__every=1, eval__files="[]", train__steps=40
    )
    return rl_config(tmp_path, guesser, name, parallel__shard="states", **(settings | changes))


@pytest.mark.parametrize("differs", ["config", "data"])
def test_ranks_that_read_other_files_are_refused_before_the_first_step(tmp_path, guesser, differs):
    """As on a machine with an older checkout: the second rank starts in a folder of its own."""
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        (tmp_path / rank / "rows.jsonl").write_text(json.dumps({"prompt": "1 2 =", "answer": "1 2"}) + "\n")
        settings = dict(data__train="[rows.jsonl]", eval__files="[]", reward__verifier="exact")
        config = small_config(tmp_path, guesser[0], **settings)
        (tmp_path / rank / "run.yaml").write_text(config.read_text())
    if differs == "config":
        with open(tmp_path / "1" / "run.yaml", "a") as file:
            file.write("mask: clip\n")
    else:
        (tmp_path / "1" / "rows.jsonl").write_text(json.dumps({"prompt": "2 3 =", "answer": "2 3"}) + "\n")
    (tmp_path / "augur_in_folder.py").write_text(
        "import os, runpy, sys\n"
        f"os.chdir(os.path.join({str(tmp_path)!r}, os.environ['RANK']))\n"
        "runpy.run_module('augur', run_name='__main__', alter_sys=True)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [tmp_path / "augur_in_folder.py", "train", "run.yaml"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode != 0 and "rank 1: configuration and files: are not those of the first rank" in done.stderr
    assert ("proximity: ratio" if differs == "config" else "rows.jsonl (") in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_sigterm_to_torchrun_saves_and_ends_all(tmp_path, guesser):
    process = start_ranks(2, "train", long_config(tmp_path, guesser, "run", train__steps=100000, checkpoint__every=0))
    wait_for_step(tmp_path / "run", 2, process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    steps = read_metrics(tmp_path / "run")[-1]["step"]
    assert (tmp_path / "run" / "checkpoints" / f"global_step_{steps}").is_dir()
    assert "stopped by SIGTERM" in out


@pytest.mark.slow
def test_a_signal_is_heeded_while_a_function_is_awaited(tmp_path, guesser):
    flag = tmp_path / "slow"
    code = "import os, time\n\ndef score(data_source, solution_str, ground_truth, extra_info):\n"
    code += f"    time.sleep(20 if os.path.exists({str(flag)!r}) else 0)\n    return float(len(solution_str))\n"
    (tmp_path / "reward.py").write_text(code)
    changes = dict(reward__python=f"{tmp_path / 'reward.py'}:score", reward__workers=1, reward__timeout_s=60)
    process = start_ranks(2, "train", long_config(tmp_path, guesser, "run", checkpoint__every=0, **changes))
    wait_for_step(tmp_path / "run", 1, process)
    flag.touch()
    time.sleep(2)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert "stopped by SIGTERM" in out and "saved" in out
    assert time.monotonic() - began < 15  # torchrun kills after 30 s


@pytest.mark.slow
def test_the_first_fault_of_a_function_is_told_whoever_meets_it(tmp_path, guesser):
    (tmp_path / "reward.py").write_text(
        "import os\n\ndef score(data_source, solution_str, ground_truth, extra_info):\n"
        "    if os.environ['RANK'] == '1':\n        raise ValueError('on the second rank')\n    return 0.0\n"
    )
    changes = dict(reward__python=f"{tmp_path / 'reward.py'}:score", reward__workers=1, reward__max_errors=0.99)
    changes |= dict(run__deterministic="true", train__steps=2)  # prompts are dealt out in turn
    done = run_ranks(2, "train", long_config(tmp_path, guesser, "run", **changes))
    assert read_metrics(tmp_path / "run")[-1]["data"]["reward/errors"] > 0
    assert done.stderr.count("Traceback (most recent call last):") == 1
    assert done.stderr.count("ValueError: on the second rank") == 1


@pytest.mark.slow
def test_lines_before_one_that_overflows_are_scored(tmp_path, guesser):
    model = AutoModelForCausalLM.from_pretrained(guesser[0], dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight[5, 0] = -3.3e38
    model.save_pretrained(tmp_path)
    shutil.copy(guesser[0] / "tokenizer.json", tmp_path)
    lines = "".join(json.dumps({"tokens": tokens}) + "\n" for tokens in ([1, 2, 3], [2, 3], [1, 5, 7], [1, 2]))
    alone = run_augur("score", tmp_path, "--batch-tokens", "3", stdin=lines, check=False)
    ranks = run_ranks(2, "score", tmp_path, "--batch-tokens", "3", stdin=lines, check=False)
    assert alone.stdout.count("\n") == ranks.stdout.count("\n") == 2
    assert "augur: line 3: a log-probability is not finite" in alone.stderr
    assert ranks.stderr.count("line 3: a log-probability is not finite") == 1


@pytest.mark.slow
def test_a_signal_is_heeded_amid_an_update(tmp_path, guesser):
    """Between micro-batches, on all ranks at the same one; the state is that before the step."""
    changes = dict(
        rollout__prompts=120, rollout__group=8, train__minibatch=0, train__epochs=1, train__micro_tokens=8,
        algorithm__kl_coef=0, algorithm__anchor="rollout", train__steps=100000, checkpoint__every=0,
    )  # fmt: skip
    process = start_ranks(2, "train", long_config(tmp_path, guesser, "run", **changes))
    wait_for_step(tmp_path / "run", 1, process)
    first = read_metrics(tmp_path / "run")[0]["data"]
    time.sleep(first["timing_s/gen"] + 0.3 * first["timing_s/update_actor"])
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert "stopped by SIGTERM after step 1 of 100000; saved" in out


@pytest.mark.slow
def test_a_killed_rank_costs_what_came_after_the_last_checkpoint(tmp_path, guesser):
    """With --max-restarts the run goes on by itself and ends with the figures of one that was not disturbed."""
    run_ranks(2, "train", long_config(tmp_path, guesser, "calm", train__steps=30))
    config = long_config(tmp_path, guesser, "run", train__steps=30)
    process = start_ranks(2, "train", config, launcher=("--max-restarts=1", "--monitor-interval=0.2"))
    wait_for_step(tmp_path / "run", 3, process)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert without_times(read_metrics(tmp_path / "run")) == without_times(read_metrics(tmp_path / "calm"))


@pytest.mark.slow
def test_a_rank_that_dies_while_it_starts_is_started_again(tmp_path, guesser):
    """The other has already said in the store that it is there; neither waits for the other's first start."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, time\n"
        "if os.environ.get('RANK') == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    time.sleep(8)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    config = long_config(tmp_path, guesser, "run", train__steps=2)
    process = start_ranks(2, "train", config, launcher=("--max-restarts=1",), paths=f"{tmp_path}:")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


@pytest.mark.slow
def test_a_rank_that_is_at_something_else_is_named(tmp_path, guesser):
    (tmp_path / "reward.py").write_text(
        "import os, time\n"
        "def score(completions, **columns):\n"
        "    time.sleep(60 if os.environ['RANK'] == '1' else 0)\n"
        "    return [float(len(c)) for c in completions]\n"
    )
    changes = dict(parallel__timeout_s=5, reward__python=f"{tmp_path}/reward.py:score", reward__timeout_s=90)
    process = start_ranks(3, "train", long_config(tmp_path, guesser, "run", **changes))
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0 and "process group: rank 1 ended or did not answer" in err


@pytest.mark.slow
def test_a_fault_that_all_ranks_see_is_told_once(tmp_path, guesser):
    config = long_config(tmp_path, guesser, "run", train__max_bad_updates=1)
    done = run_ranks(2, "train", config, "--corrupt-gradient", 1, check=False)
    assert done.returncode != 0 and done.stderr.count("not finite") == 1
    (tmp_path / "reward.py").write_text("def score(completions, **columns):\n    raise ValueError('no')\n")
    config = long_config(tmp_path, guesser, "scored", reward__python=f"{tmp_path}/reward.py:score")
    done = run_ranks(2, "train", config, check=False)
    assert done.returncode != 0 and done.stderr.count("responses could be scored") == 1


@pytest.mark.slow
def test_processes_of_a_command_for_one_do_not_wait_for_other_ranks(tmp_path):
    base = (ROOT / "recipes" / "quickstart.yaml").read_text().replace("models/tiny", str(TINY))
    (tmp_path / "base.yaml").write_text(base)
    small = "train.steps=1, train.minibatch=0, rollout.prompts=2, rollout.group=2, eval.prompts=2, eval.samples=2"
    (tmp_path / "grid.yaml").write_text(
        f"base: base.yaml\ndir: {tmp_path}/out\nseeds: 1\nset: [{small}]\n"
        "grid:\n  lr_factor: [1]\narms:\n  none: [mask=none]\n"
    )
    done = run_ranks(2, "frontier", tmp_path / "grid.yaml", "--workers", 1)
    assert "frontier runs on one process" in done.stderr and (tmp_path / "out" / "frontier.json").exists()


@pytest.mark.slow
def test_a_rank_that_no_longer_answers_ends_the_run(tmp_path, guesser):
    process = start_ranks(2, "train", long_config(tmp_path, guesser, "run", train__steps=100000, parallel__timeout_s=3))
    wait_for_step(tmp_path / "run", 2, process)
    hung = ranks_of(process)[1]
    os.kill(hung, signal.SIGSTOP)
    try:
        _, err = process.communicate(timeout=120)
    finally:
        if Path(f"/proc/{hung}").exists():
            os.kill(hung, signal.SIGKILL)
    assert process.returncode != 0 and "augur: rank 0: process group: rank 1" in err


@pytest.mark.slow
@pytest.mark.parametrize(("count", "replicas"), [(3, 1), (4, 2)])
def test_without_restarts_all_end_and_name_the_rank_that_failed(tmp_path, guesser, count, replicas):
    changes = dict(parallel__timeout_s=30, parallel__replicas=replicas, train__epochs=20, train__micro_tokens=8)
    config = long_config(tmp_path, guesser, "run", train__steps=100000, **changes)
    process = start_ranks(count, "train", config)
    wait_for_step(tmp_path / "run", 2, process)
    ranks = ranks_of(process)
    os.kill(ranks[2], signal.SIGKILL)
    began = time.monotonic()
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0 and time.monotonic() - began < 60
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    assert "process group: rank 2 ended" in err and not re.search(r"group: ranks? [013]|another rank", err)


@pytest.mark.gpu
@pytest.mark.parametrize(("ranks", "shard"), [(1, "full"), (2, "none"), (2, "states"), (2, "full")])
def test_ranks_on_a_gpu_give_the_figures_of_one(tmp_path, ranks, shard):
    """One rank, for which NCCL is set up, gives the bits of none; two that share the GPU over Gloo round otherwise."""
    policy = make_policy(tmp_path / "model")
    settings = dict(
        run__device="cuda", run__deterministic="true", model__precision="bf16", train__steps=3, train__lr=0.001,
        train__eps=1e-3, rollout__memory_share=0.1, reward__overlong_buffer=8, log__console="false",
    )  # fmt: skip
    run_augur("train", write_config(tmp_path / "alone.yaml", policy, tmp_path / "alone", **settings))
    settings |= dict(parallel__shard=shard)
    run_ranks(ranks, "train", write_config(tmp_path / "ranks.yaml", policy, tmp_path / "ranks", **settings))
    lines, expected = (without_times(read_metrics(tmp_path / name)) for name in ("ranks", "alone"))
    if ranks == 1:
        assert lines == expected
        return
    # Later steps draw other tokens where a log-prob was rounded otherwise.
    for name in ("actor/grad_norm", "critic/rewards/mean", "response_length/mean", "actor/entropy"):
        assert lines[0]["data"][name] == pytest.approx(expected[0]["data"][name], rel=0.02), name
    for name in ("actor/grad_norm", "actor/entropy"):
        assert lines[-1]["data"][name] == pytest.approx(expected[-1]["data"][name], rel=0.1), name
