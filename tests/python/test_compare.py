"""augur compare: every arm with the same seeds, resumable, with figures that follow from the runs."""

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import PROGRAM, ROOT, run_augur
from train_runs import write_guesses

SMALL = [
    "train.steps=3",
    "train.warmup_steps=0",
    "rollout.prompts=4",
    "train.minibatch=2",
    "run.threads=2",
    "eval.every=1",
]
SMALL += ["eval.prompts=8", "eval.samples=2", "checkpoint.every=2", "log.tensorboard=false"]


@pytest.fixture
def comparison(tmp_path):
    (tmp_path / "base.yaml").write_text(
        (ROOT / "recipes" / "quickstart.yaml").read_text().replace("models/tiny", f"{ROOT}/models/tiny")
    )
    file = tmp_path / "two.yaml"
    file.write_text(
        f"base: base.yaml\ndir: {tmp_path}/out\nset: [{', '.join(SMALL)}]\n"
        "arms:\n  clip: [mask=clip]\n  predictive: [mask=predictive-kl-exact, mask.delta=0.01]\n"
    )
    return file


def test_trains_each_arm_with_each_seed_and_goes_on_where_it_was(comparison):
    out = comparison.parent / "out"
    run_augur("compare", comparison, "--seeds", 1, "--workers", 1)
    first = {arm: (out / arm / "seed-0" / "summary.json").stat().st_mtime_ns for arm in ("clip", "predictive")}
    (out / "clip" / "seed-0" / "model").rename(out / "kept-as-it-is")
    done = run_augur("compare", comparison, "--seeds", 2, "--workers", 1)
    assert "[3/4] clip, seed 1" in done.stderr and "seed 0" not in done.stderr
    assert "2 seeds say little" in done.stderr and "--seeds" in done.stderr
    assert first == {arm: (out / arm / "seed-0" / "summary.json").stat().st_mtime_ns for arm in first}
    result = json.loads((out / "compare.json").read_text())
    assert result["seeds"] == [0, 1] and result["baseline"] == "clip"
    after = {
        arm["name"]: [
            json.loads((out / arm["name"] / f"seed-{s}" / "summary.json").read_text())["after"] for s in (0, 1)
        ]
        for arm in result["arms"]
    }
    for arm in result["arms"]:
        assert arm["final_accuracy"]["mean"] == pytest.approx(np.mean(after[arm["name"]]))
        assert arm["curves"]["accuracy"]["x"] == [0, 1, 2, 3]
        assert arm["collapses"] in (0, 1, 2)
    difference = result["arms"][1]["minus_baseline"]["final_accuracy"]["mean"]
    differences = np.subtract(after["predictive"], after["clip"])
    assert difference == pytest.approx(np.mean(differences))
    # Student's t with one degree of freedom, by its closed form: the quantile, and p = 1 - 2 atan(|t|) / pi.
    figure = result["arms"][1]["minus_baseline"]["final_accuracy"]
    half = np.tan(np.pi * 0.95 / 2) * np.std(differences, ddof=1) / np.sqrt(2)
    assert [figure["low"], figure["high"]] == pytest.approx([difference - half, difference + half])
    assert result["interval"] == "student-t" and "Student's t" in done.stdout
    # Two seeds show their values, since their interval says nothing.
    values = ", ".join(f"{100 * value:.1f}" for value in after["predictive"])
    assert f"({values})" in done.stdout and "[" not in done.stdout
    assert all((out / arm / f"seed-{s}" / "report.html").exists() for arm in after for s in (0, 1))
    header, clip, predictive = (line.split() for line in done.stdout.splitlines()[:3])
    assert "p" in header
    if np.std(differences) == 0:  # the arms did the same with every seed: there is nothing to test
        assert figure["p"] is None
    else:
        t = abs(difference) / (np.std(differences, ddof=1) / np.sqrt(2))
        assert figure["p"] == pytest.approx(1 - 2 * np.arctan(t) / np.pi) and f"{figure['p']:.3f}" in predictive
    assert len((out / "compare.csv").read_text().splitlines()) == 5
    assert (out / "report.html").exists()


def test_the_file_says_how_many_seeds_unless_the_command_does(comparison):
    comparison.write_text(comparison.read_text() + "seeds: 2\n")
    run_augur("compare", comparison)
    assert json.loads((comparison.parent / "out" / "compare.json").read_text())["seeds"] == [0, 1]
    run_augur("compare", comparison, "--seeds", 1)
    assert json.loads((comparison.parent / "out" / "compare.json").read_text())["seeds"] == [0]


def test_runs_are_shared_out_among_processes(comparison):
    out = comparison.parent / "out"
    done = run_augur("compare", comparison, "--seeds", 1, "--workers", 2)
    assert "1 seed says little" in done.stderr
    assert (out / "claims").is_dir()  # where processes say which run they have taken
    shared = json.loads((out / "compare.json").read_text())
    run_augur("compare", comparison, "--seeds", 1, "--workers", 1, "--dir", out.with_name("one-by-one"))
    alone = json.loads((out.with_name("one-by-one") / "compare.json").read_text())
    for one, other in zip(shared["arms"], alone["arms"], strict=True):
        assert one["curves"]["reward"] == other["curves"]["reward"]


@pytest.mark.slow
def test_a_comparison_goes_on_with_another_number_of_processes(comparison):
    comparison.write_text(
        comparison.read_text().replace(", run.threads=2", "").replace("train.steps=3", "train.steps=1")
    )
    out = comparison.parent / "out"
    run_augur("compare", comparison, "--seeds", 1, "--workers", 2)
    run_augur("compare", comparison, "--seeds", 2, "--workers", 1)
    run_augur("compare", comparison, "--seeds", 3)
    assert json.loads((out / "compare.json").read_text())["seeds"] == [0, 1, 2]
    assert all("threads: 1\n" in file.read_text() for file in out.glob("*/*/config.yaml"))


def test_one_that_trains_alone_leaves_to_others_what_they_are_at(comparison):
    (comparison.parent / "out" / "claims").mkdir(parents=True)
    (comparison.parent / "out" / "claims" / "clip_seed-0.1").write_text("elsewhere - - 1")
    done = run_augur("compare", comparison, "--seeds", 1, "--workers", 1)
    assert "1 of 2 runs are not finished" in done.stdout
    assert (comparison.parent / "out" / "predictive").exists() and not (comparison.parent / "out" / "clip").exists()


@pytest.mark.slow
def test_workers_that_are_killed_are_no_success(comparison):
    comparison.write_text(comparison.read_text().replace("train.steps=3", "train.steps=1000"))
    command = [PROGRAM, "compare", comparison, "--seeds", "1", "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(list((comparison.parent / "out").glob("*/seed-0/metrics.jsonl"))) < 2:
        assert process.poll() is None
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert len(children) == 2 and process.returncode == 1
    assert "ended by signal 9" in err and "--workers" in err and "2 of 2 runs are not finished" in out


def test_a_run_that_another_process_is_at_is_not_finished_and_has_not_broken_down(comparison):
    out = comparison.parent / "out"
    (out / "claims").mkdir(parents=True)
    (out / "claims" / "predictive_seed-0.1").write_text("elsewhere - - 1")
    done = run_augur("compare", comparison, "--seeds", 2, "--workers", 2)
    assert "1 of 4 runs are not finished" in done.stdout and "broke down" not in done.stdout
    clip, predictive = json.loads((out / "compare.json").read_text())["arms"]
    first, second = predictive["final_accuracy"]["by_seed"]
    assert first is None and second == predictive["final_accuracy"]["mean"]
    assert None not in clip["final_accuracy"]["by_seed"]
    first, second = predictive["minus_baseline"]["final_accuracy"]["by_seed"]
    assert first is None and second is not None


def test_the_same_seed_starts_every_arm_from_the_same_rollouts(comparison):
    run_augur("compare", comparison, "--seeds", 1)
    out = comparison.parent / "out"
    steps = []
    for arm in ("clip", "predictive"):
        lines = (out / arm / "seed-0" / "metrics.jsonl").read_text().splitlines()
        steps.append(json.loads(lines[1])["data"])
    assert steps[0]["critic/score/mean"] == steps[1]["critic/score/mean"]
    assert steps[0]["response_length/mean"] == steps[1]["response_length/mean"]


def test_more_steps_are_dealt_out_and_fewer_are_read_from_what_is_there(comparison):
    out = comparison.parent / "out"
    flags = ["train.schedule=constant", "eval.every=2", "--seeds", 1, "--workers", 2]
    run_augur("compare", comparison, *flags, "train.steps=2")
    two = json.loads((out / "compare.json").read_text())
    done = run_augur("compare", comparison, *flags, "train.steps=4")
    assert "[1/2]" not in done.stderr  # by processes, as was asked for
    four = json.loads((out / "compare.json").read_text())
    assert [arm["curves"]["accuracy"]["x"] for arm in four["arms"]] == [[0, 2, 4]] * 2
    run_augur("compare", comparison, *flags, "train.steps=2")
    assert json.loads((out / "compare.json").read_text()) == two


def test_a_run_that_broke_down_has_no_final_accuracy(comparison):
    out = comparison.parent / "out"
    comparison.write_text(comparison.read_text().replace("mask.delta=0.01", "train.lr=1e30, train.max_bad_updates=1"))
    done = run_augur("compare", comparison, "--seeds", 1)
    assert "predictive: 1 of 1 seeds broke down" in done.stdout
    with (out / "compare.csv").open() as file:
        clip, predictive = csv.DictReader(file)
    assert float(clip["final_accuracy"]) >= 0 and predictive["final_accuracy"] == predictive["auc_accuracy"] == "nan"
    assert predictive["collapsed"] == "1"


def test_a_folder_where_other_settings_are_at_work_is_refused(comparison):
    run_augur("compare", comparison, "--seeds", 1, "--workers", 1)
    for run in (comparison.parent / "out").glob("*/seed-0"):
        (run / "summary.json").unlink()  # as if they were still trained
    done = run_augur("compare", comparison, "train.lr=1e-5", "--seeds", 2, check=False)
    assert done.returncode == 2 and "train.lr" in done.stderr and "--dir" in done.stderr


def test_a_finished_run_of_another_configuration_is_not_taken_for_this_one(comparison):
    run_augur("compare", comparison, "--seeds", 1)
    done = run_augur("compare", comparison, "train.lr=1e-5", "--seeds", 1, check=False)
    assert done.returncode == 2 and "train.lr" in done.stderr


def test_a_finished_run_of_other_files_is_not_taken_for_this_one(comparison, tmp_path):
    model, data = tmp_path / "model", write_guesses(tmp_path / "data.jsonl")
    shutil.copytree(ROOT / "models" / "tiny", model)
    command = ["compare", comparison, f"model.path={model}", f"data.train=[{data}]", "--seeds", 1]
    run_augur(*command)
    run_augur(*command)
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    done = run_augur(*command, check=False)
    assert done.returncode == 2 and "model.safetensors: other content" in done.stderr and "--dir" in done.stderr
    (model / "model.safetensors").write_bytes(weights)
    data.write_text(data.read_text().replace("1 2 =", "2 1 ="))
    done = run_augur(*command, check=False)
    assert done.returncode == 2 and "data.jsonl: other content" in done.stderr and "--dir" in done.stderr


@pytest.mark.parametrize(
    "text, message",
    [
        ("arms: {a: [mask=clip]}", "base"),
        ("base: base.yaml\ndir: out", "names a base configuration and no arms; add arms:"),
        ("base: base.yaml\nset: ['eval.files=[]']\narms: {a: []}", "these runs are not evaluated; set eval.files"),
        ("base: base.yaml\narms: 3", "arms"),
        ("base: base.yaml\narm: {}\narms: {a: []}", "did you mean 'arms'"),
        ("base: base.yaml\narms: {../up: []}", "cannot name an arm"),
        ("base: base.yaml\narms: {a: [mask=clap]}", "clip"),
        ("base: base.yaml\narms: {a: {x: y}}", "key=value"),
        ("base: [", "YAML"),
        ("base: absent.yaml\narms: {a: []}", "absent.yaml"),
        ("base: ~/absent.yaml\narms: {a: []}", f"{Path.home()}/absent.yaml"),
    ],
)
def test_mistakes_in_the_file_are_named(comparison, text, message):
    comparison.write_text(text)
    done = run_augur("compare", comparison, "--dir", comparison.parent / "out", check=False)
    assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["run.seed=3"], "run.seed=3: every run of a study has a seed of its own; use --first-seed"),
        (["run.dir=elsewhere"], "run.dir=elsewhere: every run of a study has a directory of its own; use --dir"),
        (["--seeds", 100_000_000_000], "100000000000 is not within 1 and 65536"),
        (["--workers", 1_000_000], "1000000 is not within 1 and 1024"),
        (["--first-seed", 2**63 - 1], "9223372036854775807 is not within 0 and"),
        (["--level", "nan"], "'nan' is not within 0.5 and 0.999"),
        (["mask=clip"], "mask=clip: the arm 'clip' sets mask itself"),
    ],
)
def test_what_a_study_decides_itself_or_cannot_hold_is_refused(comparison, flags, message):
    done = run_augur("compare", comparison, *flags, check=False)
    assert done.returncode == 2 and message in done.stderr
    assert not (comparison.parent / "out").exists()


def test_a_finished_run_without_its_figures_is_named(comparison):
    run_augur("compare", comparison, "--seeds", 1)
    metrics = next((comparison.parent / "out").rglob("metrics.jsonl"))
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    done = run_augur("compare", comparison, "--seeds", 1, check=False)
    assert done.returncode == 2 and f"{metrics.parent}: has come to its last step" in done.stderr
    shutil.rmtree(metrics.parent)
    run_augur("compare", comparison, "--seeds", 1)


def test_a_page_of_the_users_own_is_not_replaced(comparison):
    out = comparison.parent / "mine"
    out.mkdir()
    (out / "report.html").write_text("mine")
    done = run_augur("compare", comparison, "--seeds", 1, "--dir", out, check=False)
    assert done.returncode == 2 and "no run of Augur made and this one would replace: report.html" in done.stderr
    assert [path.name for path in out.iterdir()] == ["report.html"]
    (out / "frontier.json").write_text("{}")
    done = run_augur("compare", comparison, "--seeds", 1, "--dir", out, check=False)
    assert done.returncode == 2 and "holds a frontier, of which this would replace report.html" in done.stderr
