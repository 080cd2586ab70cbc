"""Reward functions in Python: TRL's and verl's, from a file or passed to augur.train."""

import contextlib
import io
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

import pytest

import augur
from conftest import ROOT, run_augur
from reward_runs import FUNCTIONS, function, guessing, trained, weights
from train_runs import (
    ANSWER,
    read_lines,
    read_metrics,
    small_config,
    start,
    wait_for_step,
    without_times,
)


@pytest.fixture
def guesses(tmp_path) -> dict:
    return guessing(tmp_path)


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


@pytest.mark.parametrize("staleness", [0, 2])
def test_functions_of_trl_know_the_step_that_learns_from_a_response(staleness, tmp_path, guesses):
    """As in TRL, the steps done before it, and in evaluations so far; also where responses were generated earlier."""
    changes = {"train__steps": 4, "eval__files": guesses["data__train"], "eval__every": 2, "eval__at_start": "true"}
    changes |= {"rollout__staleness": staleness, "reward__python": function(tmp_path, "at_step")}
    metrics, _ = trained(tmp_path, guesses, "run", **changes)
    trained_on = [line["data"].get("critic/score/mean") for line in metrics]
    assert trained_on == [None, *(pytest.approx(done + 0.04) for done in range(4))]
    evaluated = {line["step"]: line["data"].get("val-aux/guess/reward/mean@2") for line in metrics}
    assert evaluated == {0: pytest.approx(0.04), 1: None, 2: pytest.approx(2.04), 3: None, 4: pytest.approx(4.04)}


def test_outside_of_runs_the_step_is_zero(tmp_path, guesses):
    data = guesses["data__train"].strip("[]")
    options = {"samples": 2, "max_tokens": 2, "threads": 1, "reward_workers": 1}
    figures = augur.evaluate(guesses["policy"], data, reward=function(tmp_path, "at_step"), **options)
    assert figures["overall"]["score"] == 0


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
    run_augur("train", config, environment={"PYTHONPATH": str(library)})
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


@pytest.mark.parametrize("name", ["details", "by_step"])
def test_a_killed_run_resumes_to_the_bit(name, tmp_path, guesses):
    settings = guesses | {
        "reward__python": function(tmp_path, name),
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


def test_an_evaluation_tells_unscored_responses_from_wrong_ones(tmp_path, guesses):
    flags = ["--data", *guesses["data__train"].strip("[]").split(", "), "--samples", 4, "--json", tmp_path / "f.json"]
    run_augur("eval", guesses["policy"], *flags, "--reward", function(tmp_path, "seldom"))
    figures = json.loads((tmp_path / "f.json").read_text())
    figures = figures["sources"]["guess"]
    assert figures["answered"] == pytest.approx(0.5) and figures["failed"] == 0
    assert figures["score"] == pytest.approx(2 * figures["avg@4"])  # of the half that was scored
    run_augur("eval", guesses["policy"], *flags, "--reward", function(tmp_path, "never"))
    figures = json.loads((tmp_path / "f.json").read_text())["sources"]["guess"]
    assert (figures["avg@4"], figures["score"], figures["failed"]) == (0, None, 0)


def test_a_function_that_scores_right_responses_alone_has_the_accuracy_of_all(tmp_path, guesses):
    flags = ["--data", *guesses["data__train"].strip("[]").split(", "), "--samples", 1, "--json", tmp_path / "f.json"]
    accuracies = []
    for reward in ([], ["--reward", function(tmp_path, "right_or_none")]):
        run_augur("eval", guesses["policy"], *flags, *reward)
        figures = json.loads((tmp_path / "f.json").read_text())["sources"]["guess"]
        accuracies.append((figures["avg@1"], figures["prompts"]))
    assert 0 < accuracies[0][0] < 1 and accuracies[1] == accuracies[0]


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


FORKS = """
import os, sys

def value(text):
    return (sum(map(ord, text)) % 10) / 10

def plain(data_source, solution_str, ground_truth, extra_info):
    return value(solution_str)

def leaves(data_source, solution_str, ground_truth, extra_info):
    if os.fork() == 0:
        sys.exit(0)
    return value(solution_str)

def comes_back(data_source, solution_str, ground_truth, extra_info):
    return value(solution_str) if os.fork() else -1.0

def raises(data_source, solution_str, ground_truth, extra_info):
    if os.fork() == 0:
        raise ValueError("in the child")
    return value(solution_str)
"""


@pytest.mark.parametrize("name", ["leaves", "comes_back", "raises"])
def test_a_fork_that_comes_back_from_a_function_answers_nothing(name, tmp_path, guesses):
    (tmp_path / "forks.py").write_text(FORKS)
    plain, _ = trained(tmp_path, guesses, "plain", reward__python=f"{tmp_path}/forks.py:plain")
    forked, _ = trained(tmp_path, guesses, "forked", reward__python=f"{tmp_path}/forks.py:{name}")
    assert without_times(forked) == without_times(plain)
    assert all(line["data"]["reward/errors"] == line["data"]["reward/restarts"] == 0 for line in forked)


def test_a_function_may_print_where_nobody_reads_any_more(tmp_path):
    """The engine notices a lost reader itself; that its worker met it first is no fault of the response."""
    (tmp_path / "prints.py").write_text(
        "import sys\n\ndef f(completions, **columns):\n    print('x' * 100_000, flush=True)\n"
        "    sys.stderr.write('y' * 100_000)\n    return [0.5] * len(completions)\n"
    )
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    os.close(read)
    worker = [sys.executable, ROOT / "python" / "augur" / "_reward_worker.py", tmp_path / "prints.py", "f"]
    child = subprocess.Popen(
        worker, stdout=write, stderr=write, close_fds=False, preexec_fn=lambda: os.dup2(theirs.fileno(), 3)
    )
    theirs.close()
    answers = ours.makefile("rb")

    def answer() -> dict:
        return json.loads(answers.read(struct.unpack("<I", answers.read(4))[0]))

    assert answer()["ready"]
    response = {"prompt": "a", "text": "b", "columns": {}, "tokens": [1], "trainer_state": {}}
    body = json.dumps(response).encode()
    ours.sendall(struct.pack("<I", len(body)) + body)
    assert answer() == {"score": 0.5, "figures": {}, "answer": None}
    ours.close()
    answers.close()
    assert child.wait(10) == 0


def test_scores_whose_squares_are_infinite_are_no_scores(tmp_path, guesses):
    (tmp_path / "large.py").write_text(
        "def f(completions, **columns):\n    return [1e300 if text.strip() == '7' else 0.0 for text in completions]\n"
    )
    metrics, said = trained(tmp_path, guesses, "run", reward__python=f"{tmp_path}/large.py:f", reward__max_errors=0.99)
    assert sum(line["data"]["reward/errors"] for line in metrics) > 0 and "1e+300 is no score" in said


def test_figures_may_be_larger_than_scores():
    from augur._reward_worker import result_of

    assert result_of({"score": 1, "time_ns": 2e18, "broken": float("nan")})["figures"] == {"time_ns": 2e18}
    with pytest.raises(ValueError, match="is no score"):
        result_of({"score": 2e18})
