"""Reward functions in Python: TRL's and verl's, from a file or passed to augur.train."""

import contextlib
import io
import json
import os
import re
import signal
import statistics
import subprocess
import threading
import time
from pathlib import Path

import pytest

import augur
from conftest import PROGRAM, ROOT, run_augur
from train_runs import (
    ANSWER,
    make_guesser,
    read_lines,
    read_metrics,
    small_config,
    stands_at,
    start,
    wait_for_step,
    without_times,
    write_guesses,
)

FUNCTIONS = f"""
import asyncio, os, time

loops = []  # that live on, so that no other takes the place of one

def trl(prompts, completions, answer, **columns):
    assert len(prompts) == len(completions) == len(answer) == len(columns["completion_ids"])
    return [float(text.strip() == right) for text, right in zip(completions, answer)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "guess"
    return float(solution_str.strip() == ground_truth)

def details(data_source, solution_str, ground_truth, extra_info):
    right = solution_str.strip() == ground_truth
    return {{"score": 2 * right - 1, "acc": right, "length": len(solution_str), "pred": solution_str, "note": "text"}}

def helper(line):
    raise ValueError(f"cannot score {{line!r}}")

def raises(completions, **columns):
    return [0.5 if completions[0].strip() == "{ANSWER}" else helper(completions[0])]

def fails(completions, **columns):
    raise ValueError("always")

def dies(completions, **columns):
    if completions[0].strip() != "{ANSWER}":
        os._exit(3)
    return [0.5]

def hangs(completions, **columns):
    if completions[0].strip() != "{ANSWER}":
        time.sleep(600)
    return [0.5]

def sleeps(completions, **columns):
    open(os.environ["STAMPS"], "w").close()
    time.sleep(600)

def stamps(completions, **columns):
    with open(os.environ["STAMPS"], "a") as file:
        file.write(f"{{time.monotonic()}} {{len(completions)}}\\n")
    return [0.0] * len(completions)

def noted(completions, note, **columns):
    return [float(row["value"]) for row in note]

def among(prompts, completions, **columns):
    assert len(set(prompts)) == 1
    return [float(sum(other < text for other in completions)) for text in completions]

def seldom(completions, completion_ids, **columns):
    return [None if i % 2 else float(ids[:1] == [{ANSWER}]) for i, ids in enumerate(completion_ids)]

def never(completions, **columns):
    return [None] * len(completions)

def forgets(data_source, solution_str, ground_truth, extra_info):
    pass

def lazily(completions, **columns):
    return (0.5 for _ in completions)

def odd(data_source, solution_str, ground_truth, extra_info):
    return {{"score": 0.5, "pred": "\\ud800", "huge": 10**400}}

def of_a_dict(completions, **columns):
    return {{i: 0.5 for i in range(len(completions))}}.values()

def overlong(completion_ids, **columns):
    return [0.5 for _ in completion_ids]

def served(completions, trainer_state, log_extra, log_metric, **columns):
    log_extra("length", [len(text) for text in completions])
    log_metric("logged", 1.0)
    log_metric("logged", 2.0)
    return [0.5 + trainer_state.global_step for _ in completions]

async def awaited(completions, **columns):
    loops.append(asyncio.get_running_loop())
    return [0.5 if loops[0] is loops[-1] else 0.0 for _ in completions]

async def awaited_each(data_source, solution_str, ground_truth, extra_info):
    loops.append(asyncio.get_running_loop())
    return 0.5 if loops[0] is loops[-1] else 0.0

def unanswered(completions, answer, ground_truth, **columns):
    return [0.5 if right is None and truth is None else 0.0 for right, truth in zip(answer, ground_truth)]

def other(a, b):
    return 0
"""


@pytest.fixture
def guesses(tmp_path) -> dict:
    """Changes to a small configuration: a model that is right about every other time, and its prompts."""
    (tmp_path / "rewards.py").write_text(FUNCTIONS)
    return {
        "policy": make_guesser(tmp_path / "policy"),
        "data__train": f"[{write_guesses(tmp_path / 'data.jsonl')}]",
        "eval__files": "[]",
        "train__steps": 2,
        "reward__overlong_buffer": 0,
        "reward__workers": 2,
    }


def function(tmp_path: Path, name: str) -> str:
    return f"{tmp_path / 'rewards.py'}:{name}"


def trained(tmp_path: Path, settings: dict, name: str, **changes) -> tuple[list[dict], str]:
    """The metrics of a run, and what it said."""
    config = small_config(tmp_path, name=name, **(settings | changes))
    said = run_augur("train", config).stderr
    return without_times(read_metrics(tmp_path / name)), said


def made_by(run: Path) -> set[str]:
    """What is in a run's directory, but for the lock."""
    return {path.name for path in run.iterdir()} - {".lock"} if run.exists() else set()


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["trl", "compute_score"])
def test_a_function_that_says_what_the_verifier_says_trains_the_same_model(name, tmp_path, guesses):
    files = {"eval__files": guesses["data__train"], "eval__every": 1}
    plain, _ = trained(tmp_path, guesses, "plain", **files)
    scored, said = trained(tmp_path, guesses, "python", reward__python=function(tmp_path, name), **files)
    names = plain[-1]["data"].keys() - {"val-core/guess/acc/maj@2/mean", "critic/answered/mean"}
    names = {n for n in names if "answered" not in n}
    for ours, theirs in zip(scored, plain, strict=True):
        assert {n: ours["data"].get(n) for n in names} == {n: theirs["data"].get(n) for n in names}
    assert weights(tmp_path / "plain") == weights(tmp_path / "python")
    assert 0 < plain[0]["data"]["val-core/guess/acc/mean@2"] < 1
    assert "Traceback" not in said


def test_numbers_of_a_dict_are_logged(tmp_path, guesses):
    metrics, _ = trained(
        tmp_path, guesses, "run", reward__python=function(tmp_path, "details"), eval__files=guesses["data__train"]
    )
    last = metrics[-1]["data"]
    assert last["critic/score/mean"] == pytest.approx(2 * last["critic/acc/mean"] - 1)
    assert last["reward/acc/mean"] == last["critic/acc/mean"]
    assert last["reward/length/mean"] > 0
    assert last["reward/restarts"] == last["reward/errors"] == 0
    assert not any("note" in name or "pred" in name for name in last)
    accuracy = last["val-core/guess/acc/mean@2"]
    assert last["val-aux/guess/reward/mean@2"] == pytest.approx(2 * accuracy - 1)
    assert last["val-aux/guess/acc/mean@2"] == pytest.approx(accuracy)
    assert last["val-aux/guess/length/mean@2"] > 0


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


@pytest.mark.parametrize("name", ["lazily", "odd", "of_a_dict"])
def test_what_a_function_returns_need_not_be_tidy(name, tmp_path, guesses):
    metrics, _ = trained(tmp_path, guesses, "run", reward__python=function(tmp_path, name))
    assert all(line["data"]["critic/score/mean"] == 0.5 for line in metrics)
    assert all(line["data"]["reward/errors"] == 0 for line in metrics)


@pytest.mark.parametrize("name", ["overlong", "served"])
def test_functions_of_trl_get_what_trl_passes(name, tmp_path, guesses):
    metrics, _ = trained(tmp_path, guesses, "run", reward__python=function(tmp_path, name))
    for line in metrics:
        assert line["data"]["critic/score/mean"] == 0.5 and line["data"]["reward/errors"] == 0
        assert name == "overlong" or line["data"]["reward/logged/mean"] == 1.5


@pytest.mark.parametrize("name", ["awaited", "awaited_each"])
def test_calls_of_an_async_function_share_an_event_loop(name, tmp_path, guesses):
    metrics, _ = trained(tmp_path, guesses, "run", reward__python=function(tmp_path, name))
    assert all(line["data"]["critic/score/mean"] == 0.5 for line in metrics)


def test_a_function_needs_no_answer(tmp_path, guesses):
    rows = [{"prompt": f"{i} =", "note": {"value": i}} for i in range(4)]
    data = tmp_path / "asked.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"data__train": f"[{data}]", "eval__files": f"[{data}]", "rollout__prompts": 4}
    metrics, _ = trained(tmp_path, guesses, "run", reward__python=function(tmp_path, "unanswered"), **changes)
    assert [line["data"].get("critic/score/mean") for line in metrics] == [None, 0.5, 0.5]
    assert metrics[-1]["data"]["val-aux/asked/reward/mean@2"] == 0.5
    assert {record["answer"] for record in read_lines(tmp_path / "run" / "tokens.jsonl")} == {""}
    options = {"samples": 2, "max_tokens": 2, "threads": 1, "reward_workers": 1}
    figures = augur.evaluate(guesses["policy"], rows, reward=function(tmp_path, "unanswered"), **options)
    assert figures["overall"]["score"] == 0.5
    config = small_config(tmp_path, name="verified", **(guesses | changes))
    assert "no answer" in run_augur("train", config, check=False).stderr
    named = run_augur("train", config, f"reward.python={function(tmp_path, 'trl')}", "data.answer_key=a", check=False)
    assert 'no answer in the column "a"' in named.stderr


def test_a_file_may_be_named_as_a_module_is(tmp_path, guesses):
    """As verl's own math.py; what the function imports still finds the other one."""
    (tmp_path / "math.py").write_text("import fractions\n" + FUNCTIONS)
    metrics, _ = trained(tmp_path, guesses, "run", reward__python=f"{tmp_path / 'math.py'}:compute_score")
    assert all(line["data"]["reward/errors"] == 0 for line in metrics)


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


def test_responses_are_scored_while_others_are_generated(tmp_path, guesses, monkeypatch):
    stamps = tmp_path / "stamps"
    monkeypatch.setenv("STAMPS", str(stamps))
    many = {"rollout__prompts": 128, "rollout__max_batch": 1, "train__steps": 1}
    config = small_config(tmp_path, **(guesses | many | {"reward__python": function(tmp_path, "stamps")}))
    run_augur("train", config)
    times, sizes = zip(*(map(float, line.split()) for line in stamps.read_text().splitlines()), strict=True)
    assert sizes == (2,) * 128  # a prompt's responses in one call
    generating = read_metrics(tmp_path / "run")[-1]["data"]["timing_s/gen"]
    assert max(times) - min(times) > 0.3 * generating


def test_a_function_of_lists_sees_the_whole_group(tmp_path, guesses):
    metrics, _ = trained(
        tmp_path, guesses, "run",
        reward__python=function(tmp_path, "among"), rollout__group=4, log__tokens=8, train__steps=1,
    )  # fmt: skip
    groups = {}
    for line in (tmp_path / "run" / "tokens.jsonl").open():
        record = json.loads(line)
        text = "".join(token["text"] for token in record["tokens"] if token["text"] != "<eos>")
        groups.setdefault(record["prompt"], []).append((text, record["reward"]))
    assert any(len(set(group)) > 1 for group in groups.values())
    for group in groups.values():
        texts = [text for text, _ in group]
        assert [reward for _, reward in group] == [sum(other < text for other in texts) for text in texts]
    assert metrics[0]["data"]["reward/errors"] == 0


def test_a_function_may_import_the_frameworks_it_was_written_for(tmp_path, guesses):
    """Not Augur's own adapters of the same names."""
    library = tmp_path / "library"
    for name in ("trl", "verl"):
        (library / name).mkdir(parents=True)
        (library / name / "__init__.py").write_text("REAL = 1.0\n")
    (tmp_path / "imports.py").write_text(
        "import trl, verl\n\ndef score(completions, **columns):\n    return [trl.REAL * verl.REAL] * len(completions)\n"
    )
    config = small_config(tmp_path, **(guesses | {"reward__python": f"{tmp_path / 'imports.py'}:score"}))
    done = subprocess.run(
        [PROGRAM, "train", config], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(library)}
    )
    assert done.returncode == 0, done.stderr
    assert read_metrics(tmp_path / "run")[-1]["data"]["critic/score/mean"] == 1


@pytest.mark.parametrize("name", ["trl", "details"])
def test_a_model_is_evaluated_by_a_function(name, tmp_path, guesses):
    data = json.loads(guesses["data__train"].replace("[", '["').replace("]", '"]'))
    flags = ["--samples", 4, "--max-tokens", 2, "--threads", 1, "--reward-workers", 1]
    out = tmp_path / "figures.json"
    run_augur("eval", guesses["policy"], "--data", *data, *flags, "--verifier", "exact", "--output", out)
    plain = json.loads(out.read_text())["overall"]
    run_augur("eval", guesses["policy"], "--data", *data, *flags, "--reward", function(tmp_path, name), "--output", out)
    scored = json.loads(out.read_text())
    assert 0 < plain["avg@4"] < 1 and scored["overall"]["avg@4"] == plain["avg@4"]
    assert scored["sources"]["guess"]["verifier"] == function(tmp_path, name)
    if name == "details":
        assert scored["overall"]["score"] == pytest.approx(2 * plain["avg@4"] - 1)
        assert scored["overall"]["reward"]["acc"] == pytest.approx(plain["avg@4"])

    def score(completions, **columns):
        return [float(text.strip() == ANSWER) for text in completions]

    options = {"samples": 4, "max_tokens": 2, "threads": 1, "reward_workers": 1}
    assert augur.evaluate(guesses["policy"], data, reward=score, **options)["overall"]["avg@4"] == plain["avg@4"]
    done = run_augur("eval", guesses["policy"], "--data", *data, *flags, "--reward", function(tmp_path, "raises"))
    wrong = round(48 * (1 - plain["avg@4"]))
    assert f"--reward: {wrong} of 48 responses could not be scored and count as wrong" in done.stderr
    assert done.stderr.count("Traceback (most recent call last):") == 1
    none = ["--reward", function(tmp_path, "fails")]
    done = run_augur("eval", guesses["policy"], "--data", *data, *flags, *none, check=False)
    assert done.returncode == 2 and "--reward: 48 of 48 responses" in done.stderr
    done = run_augur("eval", guesses["policy"], "--data", *data, "--reward", "nowhere.py:f", check=False)
    assert done.returncode == 2 and "--reward: there is no file nowhere.py" in done.stderr


def test_a_killed_run_resumes_to_the_bit(tmp_path, guesses):
    settings = guesses | {
        "reward__python": function(tmp_path, "details"),
        "train__steps": 6,
        "rollout__staleness": 1,
        "log__tokens": 0,
    }
    whole, _ = trained(tmp_path, settings, "whole")
    config = small_config(tmp_path, name="killed", **settings)
    process = start(config)
    wait_for_step(tmp_path / "killed", 3, process)
    process.kill()
    process.communicate()
    run_augur("train", config)
    assert without_times(read_metrics(tmp_path / "killed")) == whole
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")


def test_a_response_that_a_function_returns_none_for_is_not_scored(tmp_path, guesses):
    """As TRL 1.16 does it: nanmean and nanstd of the group, and advantage 0."""
    settings = guesses | {"reward__python": function(tmp_path, "seldom"), "rollout__group": 6, "rollout__prompts": 4,
                          "train__minibatch": 0, "algorithm__skip_equal_groups": "false"}  # fmt: skip
    config = small_config(tmp_path, name="dumped", **settings)
    run_augur("train", config, "--dump-step", tmp_path / "dump")
    rows = [json.loads(line) for line in (tmp_path / "dump" / "update_0.jsonl").read_text().splitlines()]
    for key in {row["key"] for row in rows}:
        group = [row for row in rows if row["key"] == key]
        rewards = [None if r["sample"] % 2 else float(r["response"][:1] == [int(ANSWER)]) for r in group]
        scored = [r for r in rewards if r is not None]
        mean, deviation = statistics.fmean(scored), statistics.stdev(scored)
        expected = [0 if r is None else (r - mean) / (deviation + 1e-6) for r in rewards]
        assert [row["advantage"] for row in group] == pytest.approx(expected, abs=1e-6)
    assert len(rows) == 24 and any(row["advantage"] > 0 for row in rows)
    metrics, said = trained(tmp_path, settings, "run")
    assert all(step["data"]["reward/unscored"] == 12 and step["data"]["reward/errors"] == 0 for step in metrics)
    assert 0 < metrics[0]["data"]["critic/score/mean"] < 1
    assert said.count("returned None: such a response is not scored") == 1


def test_a_run_goes_on_where_nothing_of_a_step_is_scored(tmp_path, guesses):
    metrics, _ = trained(tmp_path, guesses, "run", reward__python=function(tmp_path, "never"), train__steps=2)
    assert [step["step"] for step in metrics] == [1, 2]
    assert metrics[-1]["data"]["reward/unscored"] > 0 and "critic/score/mean" not in metrics[-1]["data"]
    assert metrics[-1]["data"]["rollout/equal_groups"] == 1


def test_none_of_a_function_of_verls_is_an_error(tmp_path, guesses):
    config = small_config(tmp_path, **guesses, reward__python=function(tmp_path, "forgets"))
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and "None is no score" in done.stderr


def test_an_evaluation_tells_unscored_responses_from_wrong_ones(tmp_path, guesses):
    flags = ["--data", *guesses["data__train"].strip("[]").split(", "), "--samples", 4, "--json", tmp_path / "f.json"]
    run_augur("eval", guesses["policy"], *flags, "--reward", function(tmp_path, "seldom"))
    figures = json.loads((tmp_path / "f.json").read_text())
    figures = figures["sources"]["guess"]
    assert figures["answered"] == pytest.approx(0.5) and figures["failed"] == 0
    assert figures["score"] == pytest.approx(2 * figures["avg@4"])  # of the half that was scored
    done = run_augur("eval", guesses["policy"], *flags, "--reward", function(tmp_path, "never"), check=False)
    assert done.returncode == 2 and "the reward function returned None for every response" in done.stderr


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


def test_columns_of_the_row_reach_the_function(tmp_path, guesses):
    rows = [{"prompt": f"{i} =", "answer": ANSWER, "note": {"value": i}, "extra_info": {"i": i}} for i in range(4)]
    data = tmp_path / "noted.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics, _ = trained(
        tmp_path, guesses, "run",
        reward__python=function(tmp_path, "noted"), data__train=f"[{data}]", rollout__prompts=4,
    )  # fmt: skip
    assert metrics[0]["data"]["critic/score/mean"] == 1.5
    assert metrics[0]["data"]["critic/score/max"] == 3


def test_columns_of_the_row_reach_the_function_in_an_evaluation(tmp_path, guesses):
    rows = [{"prompt": f"{i} =", "answer": ANSWER, "note": {"value": i}} for i in range(4)]
    options = {"samples": 2, "max_tokens": 2, "threads": 1, "reward_workers": 1}
    figures = augur.evaluate(guesses["policy"], rows, reward=function(tmp_path, "noted"), **options)
    assert figures["overall"]["score"] == 1.5


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


def test_a_closure_scores_as_a_file_does(tmp_path, guesses):
    right = ANSWER
    seen = os.getpid()

    def score(completions, **columns):
        assert os.getpid() != seen
        return [float(text.strip() == right) for text in completions]

    scored, _ = trained(tmp_path, guesses, "file", reward__python=function(tmp_path, "trl"))
    config = small_config(tmp_path, name="closure", **guesses)
    run = augur.train(config, reward=score)
    assert weights(run.path) == weights(tmp_path / "file")
    assert run.metrics["critic/score/mean"] == scored[-1]["data"]["critic/score/mean"]


def test_a_closure_scores_where_stderr_is_no_file(tmp_path, guesses):
    with contextlib.redirect_stderr(io.StringIO()):
        run = augur.train(small_config(tmp_path, **guesses), reward=lambda completions: [0.5] * len(completions))
    assert run.metrics["critic/score/mean"] == 0.5


def test_runs_of_two_threads_keep_to_their_functions(tmp_path, guesses):
    """The second waits for the first, whose worker is started again meanwhile."""
    second = small_config(tmp_path, name="second", **guesses)
    waiting, died, runs = tmp_path / "waiting", tmp_path / "died", []
    thread = threading.Thread(
        target=lambda: runs.append(augur.train(second, reward=lambda completions: [0.75] * len(completions)))
    )

    def score(completions, **columns):
        if waiting.exists() and not died.exists():
            died.touch()
            os._exit(3)
        return [0.25] * len(completions)

    def begin_second(step: int, metrics: dict) -> None:
        if step == 1:
            thread.start()
            time.sleep(0.5)
            waiting.touch()

    first = small_config(tmp_path, name="first", **(guesses | {"train__steps": 3, "reward__workers": 1}))
    run = augur.train(first, "reward.max_errors=0.99", reward=score, on_step=begin_second)
    thread.join()
    assert died.exists() and run.metrics["critic/score/max"] == 0.25
    assert runs[0].metrics["critic/score/mean"] == 0.75


def test_what_a_closure_raises_costs_its_response(tmp_path, guesses, capfd):
    def score(completions, **columns):
        if completions[0].strip() != ANSWER:
            raise RuntimeError("not this one")
        return [1.0]

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

    assert len(workers()) == 2
    process.kill()
    process.communicate()
    for _ in range(100):
        if not workers():
            return
        subprocess.run(["sleep", "0.1"])
    raise AssertionError(workers())


def test_the_program_of_the_package_scores_too(tmp_path, guesses):
    config = small_config(tmp_path, **(guesses | {"reward__python": function(tmp_path, "trl")}))
    plain, _ = trained(tmp_path, guesses, "plain")
    done = subprocess.run(
        [ROOT / ".venv/bin/python", "-m", "augur", "train", config],
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert weights(tmp_path / "plain") == weights(tmp_path / "run")
