"""Signals to stop, and readers that are gone: work stops where it is, and resumed it is the same run."""

import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import augur
from conftest import PROGRAM, run_augur
from train_runs import (
    make_policy,
    read_metrics,
    small_config,
    stands_at,
    start,
    steps_of,
    wait_for_line,
    wait_for_step,
    without_times,
    write_config,
)

SOON = 10  # seconds for a stop on a busy machine; what is stopped would take minutes


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def talker(tmp_path_factory, policy):
    """The same model, whose responses rarely end before the limit."""
    directory = tmp_path_factory.mktemp("talker") / "model"
    shutil.copytree(policy, directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 269}))
    return directory


def stop_soon(process, stop=signal.SIGTERM):
    """Sends the signal; what was printed, once the process has ended by itself."""
    before = time.monotonic()
    process.send_signal(stop)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert time.monotonic() - before < SOON
    return out


def test_generation_is_stopped_and_shows_itself(tmp_path, talker):
    config = write_config(
        tmp_path / "c.yaml", talker, tmp_path / "run", rollout__prompts=4096, rollout__group=64,
        rollout__max_tokens=100, train__minibatch=0, train__steps=3,
    )  # fmt: skip
    process = start(config)
    line = wait_for_line(process, "generating")
    assert re.search(r"train: step 0/3  generating: \d+/262144 responses, \d+ tokens", line), line
    assert "stopped by SIGTERM after step 0 of 3; saved. The same command goes on" in stop_soon(process)
    assert stands_at(tmp_path / "run") == 0


def test_the_first_evaluation_is_stopped_and_shows_itself(tmp_path, talker):
    config = small_config(
        tmp_path, talker, eval__files="[task:sort:numbers=4:count=4096]", eval__samples=64, eval__max_tokens=100,
        log__console="true",
    )  # fmt: skip
    process = start(config)
    line = wait_for_line(process, "evaluating")
    assert re.search(r"train: step 0/12  evaluating: \d+/262144 responses, \d+ tokens", line), line
    assert "stopped by SIGTERM after step 0" in stop_soon(process)


def test_the_time_left_counts_the_evaluation_under_way(tmp_path, talker):
    config = small_config(
        tmp_path, talker, eval__files="[task:sort:numbers=4:count=4096]", eval__samples=64, eval__max_tokens=8,
        eval__at_start="false", eval__every=0, train__steps=2, log__console="true",
    )  # fmt: skip
    process = start(config)
    line = wait_for_line(process, "evaluating")
    process.kill()
    process.communicate()
    pattern = r"step 2/2  reward \S+  acc .*  evaluating: (\d+)/262144 responses, \d+ tokens  (\d+:\d\d) left"
    done, left = re.search(pattern, line).groups()
    assert int(done) > 0 and left != "0:00"


def test_a_step_whose_evaluation_is_stopped_counts_everywhere(tmp_path, policy):
    config = small_config(
        tmp_path, policy, eval__files="[task:sort:numbers=4:count=4096]", eval__samples=64, eval__max_tokens=8,
        eval__at_start="false", eval__every=3, checkpoint__every=2, log__console="true",
    )  # fmt: skip
    process = start(config)
    assert re.search(r"step 3/12  (reward .*  )?evaluating", wait_for_line(process, "evaluating"))
    assert "stopped by SIGTERM after step 3 of 12; saved" in stop_soon(process)
    run = tmp_path / "run"
    assert stands_at(run) == 3 and steps_of(run) == [1, 2, 3] and augur.Run(run).step == 3
    run_augur("train", small_config(tmp_path, policy, eval__every=3, eval__at_start="false"), "run.resume_changed=true")
    whole = small_config(tmp_path, policy, "whole", eval__every=3, eval__at_start="false")
    run_augur("train", whole)
    assert without_times(read_metrics(run)) == without_times(read_metrics(tmp_path / "whole"))


def test_updates_are_stopped_and_show_themselves(tmp_path, policy):
    """Thousands of updates in a step: those of the unfinished one are undone."""
    config = write_config(
        tmp_path / "c.yaml", policy, tmp_path / "run", train__epochs=100000, train__steps=2, train__lr=1e-5
    )
    process = start(config)
    line = wait_for_line(process, "updating")
    assert re.search(r"train: step 0/2  updating: \d+/\d+ tokens", line), line
    assert "stopped by SIGTERM after step 0 of 2; saved" in stop_soon(process)
    saved = json.loads((tmp_path / "run" / "checkpoints" / "global_step_0" / "state.json").read_text())
    assert saved["updates"] == 0 and len(saved["waiting"]) == 1  # what was generated is not generated again


VARIANTS = {
    "minibatches": dict(train__epochs=3),
    "one update and audits": dict(train__minibatch=0, audit__every=1),
    "stale": dict(rollout__staleness=2, train__epochs=2),
    "dynamic": dict(algorithm__dynamic_sampling="true"),
}


FIRST, *OTHERS = VARIANTS


@pytest.mark.parametrize("variant", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_stopped_again_and_again_it_is_the_same_run(tmp_path, policy, variant):
    """Steps of some hundred milliseconds, in each of which a signal may come anywhere."""
    settings = dict(
        rollout__prompts=32, rollout__group=8, train__minibatch=4, train__steps=6, checkpoint__every=0,
        eval__files="[task:sort:numbers=4:count=64:seed=9]", eval__samples=4, eval__every=2,
    )  # fmt: skip
    settings |= VARIANTS[variant]
    run_augur("train", small_config(tmp_path, policy, "whole", **settings))
    config = small_config(tmp_path, policy, "cut", **settings)
    rng = random.Random(variant)
    run, stops = tmp_path / "cut", set()
    for stop in [signal.SIGTERM, signal.SIGINT] * 5:
        process = start(config)
        time.sleep(rng.uniform(0.3, 1.3))
        process.send_signal(stop)
        out, err = process.communicate(timeout=60)
        if process.returncode == -stop:  # before the run had begun
            continue
        assert process.returncode == 0, err
        found = re.search(rf"stopped by {stop.name} after step (\d+) of 6", out)
        if not found:
            break
        stops.add(int(found[1]))
        if "; saved" in out:
            assert stands_at(run) == int(found[1])
    run_augur("train", config)
    assert without_times(read_metrics(run)) == without_times(read_metrics(tmp_path / "whole"))
    for name in ("tokens.jsonl", "points.jsonl"):
        found, whole = (p.read_text() if p.exists() else "" for p in (run / name, tmp_path / "whole" / name))
        assert found == whole


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_program_loads_changes_nothing(tmp_path, policy, stop):
    for attempt in range(6):  # at any moment of its first half second
        config = small_config(tmp_path, policy, name=f"run{attempt}", train__steps=10**6, eval__files="[]")
        process = start(config)
        while b"libtorch_cpu" not in Path(f"/proc/{process.pid}/maps").read_bytes():  # its own main has begun by then
            assert process.poll() is None
        time.sleep(attempt * 0.05)
        out = stop_soon(process, stop)
        began = "after step" in out
        assert began or f"stopped by {stop.name} before it began; nothing was changed" in out, out
        assert began or not {p.name for p in tmp_path.glob(f"run{attempt}/*")} - {".lock"}
    first = small_config(tmp_path, policy, name="run0", train__steps=1, eval__files="[]")
    run_augur("train", first)


def test_two_signals_at_once_count_as_one(tmp_path, policy):
    config = small_config(tmp_path, policy, checkpoint__every=0, eval__every=0, train__steps=100000)
    process = start(config)
    wait_for_step(tmp_path / "run", 2, process)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.02)
    out = stop_soon(process)
    step = int(re.search(r"stopped by SIGTERM after step (\d+)", out)[1])
    assert stands_at(tmp_path / "run") == step and steps_of(tmp_path / "run")[-1] == step


def test_timeout_ends_a_run_with_its_work_saved(tmp_path, policy):
    running = {}
    for number in range(2):
        config = small_config(tmp_path, policy, f"run{number}", checkpoint__every=0, train__steps=100000)
        command = ["timeout", "4", PROGRAM, "train", config]
        running[tmp_path / f"run{number}"] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for run, process in running.items():
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 124 and "saved" in out, out
        assert steps_of(run) == list(range(stands_at(run) + 1))


@pytest.mark.slow
def test_a_run_whose_reader_is_gone_saves_its_work(tmp_path, policy):
    """As with `augur train CONFIG 2>&1 | head`."""
    settings = dict(checkpoint__every=0, eval__every=0, train__steps=100000, log__console="true")
    config = small_config(tmp_path, policy, **settings)
    process = subprocess.Popen([PROGRAM, "train", config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while "train: step" not in process.stdout.readline():
        assert process.poll() is None
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    run = tmp_path / "run"
    assert stands_at(run) == steps_of(run)[-1] > 0


def test_a_terminal_that_is_closed_saves_the_run(tmp_path, policy):
    settings = dict(checkpoint__every=0, eval__every=0, train__steps=100000, log__console="true")
    config = small_config(tmp_path, policy, **settings)
    run = tmp_path / "run"
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
        os.execv(PROGRAM, [str(PROGRAM), "train", str(config)])
    end = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() or steps_of(run)[-1:] < [2]:
        assert os.read(terminal, 4096) and time.monotonic() < end
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert stands_at(run) == steps_of(run)[-1] > 0
