"""Several ranks over NCCL, on one GPU: they train what one process trains, and what people see when one dies.

python -m pytest -m gpu -rP tests/python/test_nccl.py
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import run_augur
from rank_runs import ENVIRONMENT, OVER_NCCL, ranks_of, rl_config, run_ranks, start_ranks
from test_parallel_failures import wait_for_step
from train_runs import (
    make_guesser,
    make_moe_policy,
    make_policy,
    read_metrics,
    steps_of,
    without_times,
    write_config,
    write_guesses,
)

pytestmark = pytest.mark.gpu

ON_GPU = dict(run__device="cuda", rollout__memory_share=0.05)
# What a step made and learnt. Tokens are drawn from log-probs of the same float32 weights, so that they are the same.
FIGURES = ("actor/grad_norm", "actor/entropy", "critic/rewards/mean", "response_length/mean", "mask/outside")


def run_nccl(ranks: int, command: str, config: Path, *overrides: str) -> subprocess.CompletedProcess:
    done = run_ranks(ranks, command, config, *overrides, program=OVER_NCCL)
    assert done.stdout.count("trained ") == 1
    return done


def assert_close(run: Path, expected: Path, names: tuple = FIGURES, rel: float = 1e-3) -> None:
    """The sums of a GPU's update are made in another order on several ranks."""
    lines, truths = read_metrics(run), read_metrics(expected)
    assert [line["step"] for line in lines] == [line["step"] for line in truths]
    for line, truth in zip(lines, truths, strict=True):
        assert line["data"].keys() == truth["data"].keys()
        for name in names if line["step"] > 0 else ():
            close = pytest.approx(truth["data"][name], rel=rel, abs=1e-6)
            assert line["data"][name] == close, (line["step"], name)


@pytest.fixture(scope="module")
def guesser(tmp_path_factory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("guesser")
    return make_guesser(directory / "model"), write_guesses(directory / "guesses.jsonl")


KL = dict(algorithm__kl_coef=0.1, train__steps=3)
PLAIN = dict(algorithm__kl_coef=0, train__steps=3)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, guesser) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("alone")
    for name, changes in (("kl", KL), ("plain", PLAIN)):
        run_augur("train", rl_config(directory, guesser, name, **ON_GPU, **changes))
    return {name: directory / name for name in ("kl", "plain")}


@pytest.mark.parametrize(
    ("ranks", "shard", "replicas", "kind"),
    [
        (2, "none", 1, "plain"),
        (2, "states", 1, "plain"),
        (2, "full", 1, "plain"),
        (2, "full", 1, "kl"),
        (4, "states", 2, "plain"),
        (4, "full", 2, "kl"),
    ],
)
def test_ranks_over_nccl_give_the_figures_of_one(tmp_path, guesser, alone, ranks, shard, replicas, kind):
    changes = dict(parallel__shard=shard, parallel__replicas=replicas) | (KL if kind == "kl" else PLAIN)
    run_nccl(ranks, "train", rl_config(tmp_path, guesser, "run", **ON_GPU, **changes))
    run = tmp_path / "run"
    assert_close(run, alone[kind], (*FIGURES, "actor/kl_loss") if kind == "kl" else FIGURES)
    figures, truth = (read_metrics(directory)[-1]["data"] for directory in (run, alone[kind]))
    parts = ranks // replicas
    share = {"none": 1, "states": (1 + 2 / parts) / 3, "full": 1 / parts}[shard]
    assert share <= figures["perf/state_memory_gb"] / truth["perf/state_memory_gb"] < 1.05 * share
    assert (run / "model" / "model.safetensors").exists() and (run / "summary.json").exists()


@pytest.mark.parametrize(
    ("make", "shard", "changes"),
    [
        (make_moe_policy, "full", dict(algorithm__load_balance_coef=0.1)),
        (make_moe_policy, "states", dict(rollout__replay_routing="true")),
        (make_policy, "full", dict(lora__rank=4)),
        (make_policy, "states", dict(lora__rank=4)),
    ],
    ids=["experts-full", "experts-states", "lora-full", "lora-states"],
)
def test_experts_and_adapters_over_nccl_give_the_figures_of_one(tmp_path, make, shard, changes):
    policy = make(tmp_path / "model")
    settings = dict(train__steps=3, train__lr=0.001, log__console="false", **ON_GPU, **changes)
    run_augur("train", write_config(tmp_path / "alone.yaml", policy, tmp_path / "alone", **settings))
    settings |= dict(parallel__shard=shard)
    run_nccl(2, "train", write_config(tmp_path / "ranks.yaml", policy, tmp_path / "ranks", **settings))
    assert_close(tmp_path / "ranks", tmp_path / "alone")


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_low_precision_over_nccl_begins_as_one_does(tmp_path, precision):
    """Rounding differs with how many responses are in a forward; later steps draw other tokens."""
    policy = make_policy(tmp_path / "model")
    settings = dict(
        model__precision=precision, train__steps=2, train__lr=0.001, train__eps=1e-3, log__console="false", **ON_GPU
    )
    run_augur("train", write_config(tmp_path / "alone.yaml", policy, tmp_path / "alone", **settings))
    settings |= dict(parallel__shard="full")
    run_nccl(2, "train", write_config(tmp_path / "ranks.yaml", policy, tmp_path / "ranks", **settings))
    (line, last), (truth, _) = (read_metrics(tmp_path / name)[-2:] for name in ("ranks", "alone"))
    for name in ("actor/grad_norm", "actor/entropy", "response_length/mean"):
        assert line["data"][name] == pytest.approx(truth["data"][name], rel=0.05), name
    assert last["data"]["actor/grad_norm"] > 0


@pytest.mark.parametrize("shard", ["none", "full"])
def test_sft_over_nccl_gives_the_figures_of_one(tmp_path, shard):
    policy = make_policy(tmp_path / "model")
    for name in ("alone", "ranks"):
        lines = [
            f"run: {{dir: {tmp_path / name}, device: {ON_GPU['run__device']}}}",
            f"model: {{path: {policy}, precision: fp32}}",
            "data: {train: ['task:sort:numbers=4:count=64:seed=3']}", "checkpoint: {every: 2}",
            "log: {console: false}", f"parallel: {{shard: {shard if name == 'ranks' else 'none'}}}",
            "sft: {steps: 5, batch: 7, lr: 0.001}",
        ]  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    run_augur("sft", tmp_path / "alone.yaml")
    run_nccl(2, "sft", tmp_path / "ranks.yaml")
    assert_close(tmp_path / "ranks", tmp_path / "alone", ("train/loss", "train/grad_norm"))


def long_config(tmp_path: Path, guesser: tuple[Path, Path], name: str, **changes) -> Path:
    settings = dict(
        algorithm__dynamic_sampling="false", audit__every=0, checkpoint__every=2, eval__files="[]", train__steps=40,
        run__deterministic="true", parallel__shard="full",
    )  # fmt: skip
    return rl_config(tmp_path, guesser, name, **(ON_GPU | settings | changes))


def end(*pids: int) -> None:
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)


def test_a_run_over_nccl_that_is_killed_goes_on_from_its_checkpoint(tmp_path, guesser):
    """All at once, as when the machine goes away; and on one process what two wrote."""
    config = long_config(tmp_path, guesser, "run", train__steps=8)
    process = start_ranks(2, "train", config, program=OVER_NCCL)
    wait_for_step(tmp_path / "run", 3, process)
    end(process.pid, *ranks_of(process))
    process.communicate()
    run_nccl(2, "train", config, "train.steps=6")
    assert steps_of(tmp_path / "run") == list(range(1, 7))
    run_augur("train", config, "parallel.shard=none")
    run_augur("train", long_config(tmp_path, guesser, "alone", train__steps=8, parallel__shard="none"))
    assert_close(tmp_path / "run", tmp_path / "alone", rel=1e-2)


def test_a_rank_over_nccl_that_is_killed_is_started_again(tmp_path, guesser):
    """With --max-restarts the run goes on by itself."""
    config = long_config(tmp_path, guesser, "run", train__steps=12)
    launcher = ("--max-restarts=1", "--monitor-interval=0.2")
    process = start_ranks(2, "train", config, launcher=launcher, program=OVER_NCCL)
    wait_for_step(tmp_path / "run", 3, process)
    began = time.monotonic()
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    out, err = process.communicate(timeout=150)
    print(f"ended {time.monotonic() - began:.0f} s after the kill; stderr:\n{err[-6000:]}")
    assert process.returncode == 0, err
    assert steps_of(tmp_path / "run") == list(range(1, 13)) and "trained 12 steps" in out
    run_augur("train", long_config(tmp_path, guesser, "alone", train__steps=12, parallel__shard="none"))
    assert_close(tmp_path / "run", tmp_path / "alone", rel=1e-2)


@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (4, 2)])
def test_without_restarts_torchrun_ends_all_and_names_the_rank(tmp_path, guesser, ranks, replicas):
    config = long_config(tmp_path, guesser, "run", train__steps=100000, parallel__replicas=replicas)
    process = start_ranks(ranks, "train", config, program=OVER_NCCL)
    wait_for_step(tmp_path / "run", 3, process)
    pids = ranks_of(process)
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    seconds = time.monotonic() - began
    print(f"ended {seconds:.0f} s after the kill; stderr:\n{err[-6000:]}")
    assert process.returncode != 0 and seconds < 60
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert "local_rank: 1" in err and "SIGKILL" in err  # torchrun's own report
    assert (tmp_path / "run" / "checkpoints" / "global_step_2").is_dir()


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGSTOP])
def test_without_torchrun_a_rank_that_died_ends_the_others_in_bounded_time(tmp_path, guesser, signal_sent):
    """As srun starts them, and nobody ends the others: by the connection that broke, or after parallel.timeout_s."""
    config = long_config(tmp_path, guesser, "run", train__steps=100000, parallel__timeout_s=15)
    port = str(20000 + os.getpid() % 20000)
    processes = []
    for rank in ("0", "1"):
        given = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost")
        command = [sys.executable, *OVER_NCCL, "train", str(config)]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        environment = ENVIRONMENT | given | {"MASTER_PORT": port}
        processes.append(subprocess.Popen(command, env=environment, **pipes))
    first, other = processes
    try:
        wait_for_step(tmp_path / "run", 3, first)
        began = time.monotonic()
        other.send_signal(signal_sent)
        _, err = first.communicate(timeout=120)
        seconds = time.monotonic() - began
    finally:
        end(other.pid, first.pid)
        other.communicate()
    print(f"ended with {first.returncode}, {seconds:.0f} s after {signal_sent.name}; stderr:\n{err[-6000:]}")
    assert first.returncode != 0 and seconds < 60
    assert "process group: rank 1 " in err


def test_a_signal_over_nccl_saves_and_ends_all(tmp_path, guesser):
    config = long_config(tmp_path, guesser, "run", train__steps=100000, checkpoint__every=0)
    process = start_ranks(2, "train", config, program=OVER_NCCL)
    wait_for_step(tmp_path / "run", 2, process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    steps = steps_of(tmp_path / "run")[-1]
    assert "stopped by SIGTERM" in out and (tmp_path / "run" / "checkpoints" / f"global_step_{steps}").is_dir()


def test_the_same_ranks_over_nccl_twice_give_the_same_bits(tmp_path, guesser):
    for name in ("one", "two"):
        run_nccl(2, "train", long_config(tmp_path, guesser, name, train__steps=3))
    assert without_times(read_metrics(tmp_path / "one")) == without_times(read_metrics(tmp_path / "two"))
