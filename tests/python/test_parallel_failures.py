"""Ranks that fail, are killed, stopped or told different things: who says so, and what is lost."""

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
from transformers import AutoModelForCausalLM

from conftest import ROOT, run_augur
from rank_runs import ENVIRONMENT, ranks_of, rl_config, run_ranks, start_ranks
from train_runs import (
    make_guesser,
    read_lines,
    read_metrics,
    small_config,
    without_times,
    write_guesses,
)

TINY = ROOT / "models" / "tiny"


@pytest.fixture(scope="module")
def guesser(tmp_path_factory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("guesser")
    return make_guesser(directory / "model"), write_guesses(directory / "guesses.jsonl")


def wait_for_step(run: Path, step: int, process: subprocess.Popen) -> None:
    while process.poll() is None:
        if any(line["step"] == step for line in read_lines(run / "metrics.jsonl")):
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def long_config(tmp_path: Path, guesser: tuple[Path, Path], name: str, **changes) -> Path:
    settings = dict(
        algorithm__dynamic_sampling="false", audit__every=0, checkpoint__every=1, eval__files="[]", train__steps=40,
        parallel__shard="states",
    )  # fmt: skip
    return rl_config(tmp_path, guesser, name, **(settings | changes))


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "states"])
def test_a_run_directory_that_is_not_shared_is_refused_before_the_first_step(tmp_path, guesser, shard):
    """Two machines with working directories of their own, and a relative run.dir."""
    config = tmp_path / "run.yaml"
    text = long_config(tmp_path, guesser, "run", parallel__shard=shard).read_text()
    config.write_text(text.replace(str(tmp_path / "run"), "runs/here"))
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
    (tmp_path / "augur_in_folder.py").write_text(
        "import os, runpy\n"
        f"os.chdir(os.path.join({str(tmp_path)!r}, os.environ['RANK']))\n"
        "runpy.run_module('augur', run_name='__main__', alter_sys=True)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [tmp_path / "augur_in_folder.py", "train", config]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    here = tmp_path / "1" / "runs" / "here"
    assert done.returncode != 0 and f"rank 1: run.dir: {here} is not the first rank's run directory" in done.stderr
    assert not list(tmp_path.glob("*/runs/here/metrics.jsonl"))


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("command", [["train", "run.device=cuda:0"], ["eval", "--device=cuda:1"]])
def test_one_gpu_for_all_ranks_is_refused(tmp_path, guesser, command):
    """Each would launch its kernels on the GPU that it was given, over memory of another."""
    name, device = command
    given = [rl_config(tmp_path, guesser, "run")] if name == "train" else [TINY, "--data", "task:sort:count=4"]
    done = run_ranks(2, name, *given, device, check=False)
    key, number = ("run.device", 0) if name == "train" else ("--device", 1)
    refused = f"{key}: is cuda:{number}, one GPU for all 2 ranks; write cuda or auto: each rank takes its own"
    assert done.returncode != 0 and refused in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["model.path=/nothing", "run.device=cuda:99"])
def test_an_error_is_told_once_and_names_its_rank(tmp_path, guesser, wrong):
    done = run_ranks(2, "train", rl_config(tmp_path, guesser, "run"), wrong, check=False)
    assert done.returncode != 0 and not (tmp_path / "run").exists()
    assert done.stderr.count("augur: rank") == 1 and "augur: rank 0: " in done.stderr


@pytest.mark.parametrize("shard", ["none", pytest.param("full", marks=pytest.mark.slow)])
def test_a_reward_function_that_goes_down_leaves_the_finished_steps(tmp_path, guesser, shard):
    down, rewards = tmp_path / "down", tmp_path / "judge.py"
    rewards.write_text(
        "import os\ndef score(completions, trainer_state, **columns):\n"
        f"    if trainer_state.global_step >= 3 and os.path.exists({str(down)!r}):\n"
        "        raise ConnectionError('the judge is down')\n"
        "    return [float(len(text) % 2) for text in completions]\n"
    )
    settings = dict(parallel__shard=shard, reward__python=f"{rewards}:score", checkpoint__every=20, train__steps=5)
    config = long_config(tmp_path, guesser, "run", **settings)
    down.touch()
    done = run_ranks(2, "train", config, check=False)
    assert done.returncode != 0 and "the judge is down" in done.stderr and done.stderr.count("step 3 is saved") == 1
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3]
    down.unlink()
    run_ranks(2, "train", config)
    run_ranks(2, "train", long_config(tmp_path, guesser, "whole", **settings))
    found, whole = (read_metrics(tmp_path / name) for name in ("run", "whole"))
    assert [line["step"] for line in found] == [line["step"] for line in whole] == [1, 2, 3, 4, 5]
    for line, other in zip(found, whole, strict=True):
        assert line["data"]["critic/score/mean"] == other["data"]["critic/score/mean"]
