"""Reward functions that fail, hang, change or cannot be used, and what is left of their processes."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import augur
from conftest import PROGRAM, ROOT, run_augur
from reward_runs import function, guessing, made_by, trained
from train_runs import (
    ANSWER,
    read_metrics,
    small_config,
    stands_at,
    start,
    wait_for_step,
    without_times,
)


@pytest.fixture
def guesses(tmp_path) -> dict:
    return guessing(tmp_path)


@pytest.mark.parametrize("name", ["raises", "dies", pytest.param("hangs", marks=pytest.mark.slow)])
def test_a_function_that_fails_costs_its_response_alone(name, tmp_path, guesses):
    metrics, said = trained(
        tmp_path, guesses, "run",
        reward__python=function(tmp_path, name), reward__error_score=-3, reward__max_errors=0.99,
        reward__timeout_s=2 if name == "hangs" else 60, rollout__group=4,
    )  # fmt: skip
    for line in metrics:
        data = line["data"]
        errors = data["reward/errors"]
        assert data["critic/score/mean"] == pytest.approx((-3 * errors + 0.5 * (8 - errors)) / 8)
        assert data["reward/restarts"] == (0 if name == "raises" else errors)
    assert sum(line["data"]["reward/errors"] for line in metrics) > 0
    assert said.count("this first time in full") == 1
    if name == "raises":
        assert said.count("Traceback (most recent call last):") == 1
        for part in ("in raises", "in helper", "ValueError: cannot score"):
            assert said.count(part) == 1
    assert {"dies": "exit code 3", "hangs": "longer than reward.timeout_s (2 s)"}.get(name, "") in said


def test_a_signal_ends_an_evaluation_whose_function_hangs(tmp_path, guesses):
    data = guesses["data__train"].strip("[]")
    flags = ["--samples", "4", "--max-tokens", "4", "--responses", tmp_path / "responses.jsonl"]
    command = [PROGRAM, "eval", guesses["policy"], "--data", data, "--reward", function(tmp_path, "sleeps"), *flags]
    environment = os.environ | {"STAMPS": str(tmp_path / "stamps")}
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True, env=environment)
    while not (tmp_path / "stamps").exists():
        assert process.poll() is None
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "stopped by SIGINT; no figures" in said
    assert time.monotonic() - began < 10  # its calls would take ten minutes


def test_a_signal_ends_a_run_whose_function_is_still_loading(tmp_path, guesses):
    begun = tmp_path / "begun"
    (tmp_path / "slow.py").write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\n")
    process = start(small_config(tmp_path, **guesses, reward__python=f"{tmp_path / 'slow.py'}:score"))
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0 and "stopped by SIGTERM before it began; nothing was changed" in out, err
    assert not made_by(tmp_path / "run")


def test_failures_in_an_evaluation_are_counted(tmp_path, guesses):
    changes = dict(eval__files=guesses["data__train"], eval__samples=4, eval__prompts=0, train__steps=0)
    changes |= dict(reward__python=function(tmp_path, "raises"), reward__error_score=-3, reward__max_errors=0.99)
    [line], said = trained(tmp_path, guesses, "run", log__console="true", **changes)
    errors = line["data"]["val-aux/guess/reward_errors"]
    assert 0 < errors < 48
    assert re.search(rf"data.jsonl:\d+: {errors:.0f} of 48 held-out responses could not be scored and count", said)
    assert line["data"]["val-aux/guess/reward/mean@4"] == pytest.approx((-3 * errors + 0.5 * (48 - errors)) / 48)


def test_too_many_failures_end_the_run_naming_the_function(tmp_path, guesses):
    config = small_config(tmp_path, **(guesses | {"reward__python": function(tmp_path, "raises")}))
    done = run_augur("train", config, "reward.max_errors=0", check=False)
    assert done.returncode == 2
    assert "rewards.py:raises raised ValueError: cannot score" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["fails", "raises"])
def test_an_evaluation_is_held_to_the_same_limit(name, tmp_path, guesses):
    config = small_config(tmp_path, **(guesses | {"eval__files": guesses["data__train"]}))
    python = f"reward.python={function(tmp_path, name)}"
    done = run_augur("train", config, python, "reward.max_errors=0", "train.steps=0", check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and re.search(r"data.jsonl:\d+: ", last) and "ValueError" in last
    assert ("not one of the held-out 24" if name == "fails" else "of the held-out 24") in last
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_failing_evaluation_leaves_the_finished_steps(tmp_path, guesses):
    held = tmp_path / "held.jsonl"
    held.write_text(json.dumps({"prompt": "1 =", "answer": ANSWER, "data_source": "held"}) + "\n")
    rewards = tmp_path / "own.py"
    text = "def score(data_source, solution_str, ground_truth, extra_info):\n"
    rewards.write_text(f"{text}    return float(len(solution_str) % 2 if data_source == 'guess' else [][0])\n")
    changes = dict(eval__files=f"[{held}]", eval__at_start="false", eval__every=2, checkpoint__every=2, train__steps=3)
    config = small_config(tmp_path, **(guesses | changes | {"reward__python": f"{rewards}:score"}))
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and "held.jsonl:1" in done.stderr.splitlines()[-1]
    assert stands_at(tmp_path / "run") == 2
    rewards.write_text(f"{text}    return float(len(solution_str) % 2)\n")
    run_augur("train", config, "run.resume_changed=true")
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3] and "val-core/held/acc/mean@2" in lines[1]["data"]


@pytest.mark.parametrize("settings", [dict(checkpoint__every=20), dict(checkpoint__every=0, rollout__staleness=1)])
def test_a_function_that_goes_down_leaves_the_finished_steps(tmp_path, guesses, settings):
    """A judge that is down from step 12 on, and up again."""
    down, rewards = tmp_path / "down", tmp_path / "judge.py"
    rewards.write_text(
        "import os\ndef score(completions, trainer_state, **columns):\n"
        f"    if trainer_state.global_step >= 11 and os.path.exists({str(down)!r}):\n"
        "        raise ConnectionError('the judge is down')\n"
        "    return [float(len(text) % 2) for text in completions]\n"
    )
    changes = guesses | settings | dict(train__steps=14, eval__files="[]", reward__python=f"{rewards}:score")
    config = small_config(tmp_path, **changes)
    down.touch()
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and "the judge is down" in done.stderr.splitlines()[-1]
    last = stands_at(tmp_path / "run")
    assert last == (11 if settings["checkpoint__every"] else 10)  # with staleness, generated a step ahead
    assert f"step {last} is saved" in done.stderr
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == list(range(1, last + 1))
    down.unlink()
    run_augur("train", config)
    run_augur("train", small_config(tmp_path, name="whole", **changes))
    assert without_times(read_metrics(tmp_path / "run")) == without_times(read_metrics(tmp_path / "whole"))


def test_none_of_a_function_of_verls_is_an_error(tmp_path, guesses):
    config = small_config(tmp_path, **guesses, reward__python=function(tmp_path, "forgets"))
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and "None is no score" in done.stderr


@pytest.mark.parametrize("change", ["longer", "same size"])
def test_a_changed_function_is_named_and_refused_on_resume(tmp_path, guesses, change):
    file = tmp_path / "rewards.py"
    config = small_config(tmp_path, **guesses, reward__python=function(tmp_path, "trl"))
    run_augur("train", config)
    text = file.read_text()
    file.write_text(text + "# longer\n" if change == "longer" else text.replace("0.5", "0.6"))
    refused = run_augur("train", config, "train.steps=3", check=False)
    assert refused.returncode == 2 and f"{file}: " in refused.stderr and "run.resume_changed" in refused.stderr
    assert ("other content" if change == "same size" else "bytes") in refused.stderr
    file.write_text(text)
    run_augur("train", config, "train.steps=3")
    file.write_text(text + "# longer\n")
    run_augur("train", config, "train.steps=4", "run.resume_changed=true")
    assert [step["step"] for step in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{file}:other", "takes (a, b), which is neither TRL's f(prompts, completions, **columns) nor verl's"),
        ("{file}:missing", "defines no 'missing'"),
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("{file}", "write FILE.py:FUNCTION"),
        ("function score", "was passed to augur.train"),
    ],
)
def test_a_function_that_cannot_be_used_is_named_before_anything_is_made(given, message, tmp_path, guesses):
    config = small_config(tmp_path, **guesses)
    done = run_augur("train", config, f"reward.python={given.format(file=tmp_path / 'rewards.py')}", check=False)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert made_by(tmp_path / "run") == set()


def test_a_file_that_does_not_import_shows_its_traceback(tmp_path, guesses):
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    config = small_config(tmp_path, **guesses)
    done = run_augur("train", config, f"reward.python={tmp_path / 'broken.py'}:f", check=False)
    assert done.returncode == 2
    assert "Traceback (most recent call last):" in done.stderr
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr.splitlines()[-1]


def test_the_interpreter_is_the_one_that_was_named(tmp_path, guesses):
    config = small_config(tmp_path, **(guesses | {"reward__python": function(tmp_path, "trl")}))
    done = run_augur("train", config, "reward.interpreter=/nowhere/python3", check=False)
    assert done.returncode == 2
    assert "'/nowhere/python3' cannot be started" in done.stderr
    wrapper = tmp_path / "python-wrapper"
    wrapper.write_text(f'#!/bin/sh\ntouch "{tmp_path}/started"\nexec "{ROOT}/.venv/bin/python" "$@"\n')
    wrapper.chmod(0o755)
    run_augur("train", config, f"reward.interpreter={wrapper}")
    assert (tmp_path / "started").exists()


def test_what_a_closure_raises_costs_its_response(tmp_path, guesses, capfd):
    def score(completions, **columns):
        if any(text.strip() != ANSWER for text in completions):
            raise RuntimeError("not this one")
        return [1.0] * len(completions)

    run = augur.train(
        small_config(tmp_path, **guesses), "reward.error_score=-1", "reward.max_errors=0.99", reward=score
    )
    assert min(step["critic/score/min"] for step in run.history) == -1
    assert "RuntimeError: not this one" in capfd.readouterr().err


def test_what_is_no_reward_function_is_refused(tmp_path, guesses):
    config = small_config(tmp_path, **guesses)
    with pytest.raises(augur.Error, match="neither TRL's"):
        augur.train(config, reward=lambda a, b: 0)
    with pytest.raises(augur.Error, match="no function"):
        augur.train(config, reward=3)
    with pytest.raises(augur.Error, match="^reward: .* does not tell its parameters"):
        augur.train(config, reward=max)
    assert made_by(tmp_path / "run") == set()


def test_nothing_is_left_running(tmp_path, guesses):
    config = small_config(tmp_path, **(guesses | {"train__steps": 2000, "reward__python": function(tmp_path, "trl")}))
    process = start(config)
    wait_for_step(tmp_path / "run", 1, process)

    def workers() -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_text().split("\0")
            except OSError:  # it has just ended
                continue
            if str(tmp_path / "rewards.py") in words:
                found.append(entry.parent.name)
        return found

    assert len(workers()) in (2, 4)  # with those that watch them, where the kernel allows it
    process.kill()
    process.communicate()
    for _ in range(100):
        if not workers():
            return
        subprocess.run(["sleep", "0.1"])
    raise AssertionError(workers())


def test_what_a_function_starts_ends_with_a_killed_engine(tmp_path, guesses):
    (tmp_path / "starts.py").write_text(
        "import subprocess\nsubprocess.Popen(['sleep', '987.25'])\n"
        "def score(completions, **columns):\n    return [0.0] * len(completions)\n"
    )
    changes = guesses | dict(train__steps=2000, reward__python=f"{tmp_path / 'starts.py'}:score")
    process = start(small_config(tmp_path, **changes))
    wait_for_step(tmp_path / "run", 1, process)

    def sleeping() -> int:
        found = 0
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += entry.read_bytes() == b"sleep\0987.25\0"
            except OSError:  # it has just ended
                continue
        return found

    assert sleeping() == 2
    process.kill()
    process.communicate()
    end = time.monotonic() + 10
    while sleeping() and time.monotonic() < end:
        time.sleep(0.1)
    assert sleeping() == 0


@pytest.mark.parametrize("name", ["hangs", "score"])
def test_a_function_that_hangs_ends_the_run_soon(name, tmp_path, guesses):
    """192 responses, and as many seconds for one worker after another."""
    (tmp_path / "always.py").write_text(
        "import time\ndef hangs(completions, **columns):\n    time.sleep(600)\n"
        "def score(data_source, solution_str, ground_truth, extra_info):\n    time.sleep(600)\n"
    )
    settings = dict(rollout__prompts=12, rollout__group=16, reward__timeout_s=1, reward__workers=2)
    config = small_config(tmp_path, **(guesses | settings | {"reward__python": f"{tmp_path / 'always.py'}:{name}"}))
    began = time.monotonic()
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and "not one of this step's 192 responses could be scored" in done.stderr
    assert "8 calls in a row took longer than reward.timeout_s (1 s), in 2 workers, and none was" in done.stderr
    assert time.monotonic() - began < 45  # 4 s of calls, and the processes that replace those that hung


def test_a_function_that_returns_too_few_scores_ends_the_run(tmp_path, guesses):
    (tmp_path / "groups.py").write_text("def score(completions, **_):\n    return [0.5]\n")
    settings = {"reward__python": f"{tmp_path / 'groups.py'}:score", "rollout__group": 4}
    done = run_augur("train", small_config(tmp_path, **guesses, **settings), check=False)
    assert done.returncode == 2
    assert done.stderr.count("raised an exception on a group of 4 responses, which are scored one by one") == 1
    assert "ValueError: 1 score came back for 4 completions" in done.stderr
