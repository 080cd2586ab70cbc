"""augur frontier: a small grid, dealt out among processes, resumed, judged and drawn."""

import csv
import json
import os
import signal
import subprocess
import time

import pytest

from conftest import PROGRAM, ROOT, run_augur

SMALL = ["train.steps=2", "train.warmup_steps=0", "rollout.prompts=4", "eval.every=1", "eval.prompts=8"]
SMALL += ["eval.samples=2", "checkpoint.every=0", "log.tensorboard=false", "log.tokens=0", "rollout.group=4"]


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "base.yaml").write_text(
        (ROOT / "recipes" / "quickstart.yaml").read_text().replace("models/tiny", f"{ROOT}/models/tiny")
    )
    file = tmp_path / "grid.yaml"
    file.write_text(
        f"base: base.yaml\ndir: {tmp_path}/out\nseeds: 2\nset: [{', '.join(SMALL)}]\n"
        "grid:\n  lr_factor: [1, 300]\n  updates_per_batch: [2, 8]\n"
        "arms:\n  none: [mask=none]\n  exact: [mask=predictive-kl-exact]\n"
    )
    return file


def runs_of(out):
    return sorted(str(p.parent.relative_to(out)) for p in out.glob("*/*/*/summary.json"))


def is_broken(curve):
    best = 0
    for accuracy in curve:
        best = max(best, accuracy)
        if accuracy < best / 2:
            return True
    return curve[-1] < curve[0]


def accuracy_of(run):
    lines = [json.loads(line)["data"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [[v for k, v in data.items() if k.startswith("val-core/") and "/acc/mean@" in k] for data in lines]
    return [values[0] for values in found if values]


def updates_of(run):
    lines = [json.loads(line)["data"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [data["actor/updates"] for data in lines if "actor/updates" in data]
    return sum(found) / len(found)


def test_every_cell_is_trained_judged_and_drawn(grid):
    out = grid.parent / "out"
    done = run_augur("frontier", grid)
    names = [
        f"{arm}/lr_factor-{lr}.updates_per_batch-{updates}/seed-{seed}"
        for arm in ("none", "exact")
        for lr in (1, 300)
        for updates in (2, 8)
        for seed in (0, 1)
    ]
    assert runs_of(out) == sorted(names)
    config = (out / "exact/lr_factor-300.updates_per_batch-8/seed-1/config.yaml").read_text()
    assert "lr: 0.03\n" in config and "minibatch: 1\n" in config and "epochs: 2\n" in config and "seed: 1\n" in config
    assert not list(out.rglob("model")) and not list(out.rglob("checkpoints"))
    result = json.loads((out / "frontier.json").read_text())
    assert result["kind"] == "frontier" and result["unfinished"] == 0 and result["seeds"] == [0, 1]
    assert [axis["name"] for axis in result["axes"]] == ["lr_factor", "updates_per_batch"]
    for arm in result["arms"]:
        surviving = [[], []]
        assert len(arm["cells"]) == 4
        for cell in arm["cells"]:
            values = cell["values"]
            place = f"lr_factor-{values['lr_factor']}.updates_per_batch-{values['updates_per_batch']}"
            curves = [accuracy_of(out / arm["name"] / place / f"seed-{s}") for s in (0, 1)]
            assert [len(curve) for curve in curves] == [3, 3]
            broken = [is_broken(curve) for curve in curves]
            assert [run["broken"] for run in cell["runs"]] == broken and cell["broken"] == sum(broken)
            assert cell["final_accuracy"] == pytest.approx(sum(curve[-1] for curve in curves) / 2)
            updates = [updates_of(out / arm["name"] / place / f"seed-{s}") for s in (0, 1)]
            assert cell["updates"] == pytest.approx(sum(updates) / 2) and cell["updates"] > 0
            assert cell["updates"] <= int(values["updates_per_batch"])  # groups of equal rewards are left out
            for s in (0, 1):
                surviving[s].append(not broken[s])
        shares = [sum(seed) / 4 for seed in surviving]
        assert arm["surviving"]["by_seed"] == pytest.approx(shares)
        assert arm["surviving"]["low"] <= arm["surviving"]["mean"] <= arm["surviving"]["high"]
        assert f"{100 * sum(shares) / 2:.1f}" in done.stdout
    assert any(cell["broken"] for arm in result["arms"] for cell in arm["cells"])
    with (out / "frontier.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    assert any(float(row["updates"]) < int(row["updates_per_batch"]) for row in rows)
    page = (out / "report.html").read_text()
    assert '"frontier"' in page and "showFrontier" in page


@pytest.mark.slow
def test_goes_on_where_it_was_stopped_and_shares_the_work(grid):
    out = grid.parent / "out"
    # Two commands at once in one folder, as from two machines; each with workers of its own.
    first, second = (
        subprocess.Popen([PROGRAM, "frontier", grid, "--workers", "1"], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    while not runs_of(out):
        assert first.poll() is None and second.poll() is None
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    assert second.wait(timeout=240) == 0
    first.wait()
    assert len(runs_of(out)) == 16
    times = {name: (out / name / "summary.json").stat().st_mtime_ns for name in runs_of(out)}
    done = run_augur("frontier", grid)
    assert "(" in done.stdout
    assert times == {name: (out / name / "summary.json").stat().st_mtime_ns for name in runs_of(out)}
    steps = [json.loads(line)["step"] for line in (out / runs_of(out)[0] / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))


def test_a_half_done_frontier_can_be_drawn(grid):
    out = grid.parent / "out"
    done = run_augur("frontier", grid, "--draw")
    assert "16 of 16 runs are not finished" in done.stdout
    result = json.loads((out / "frontier.json").read_text())
    assert result["unfinished"] == 16 and result["arms"][0]["surviving"]["mean"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("lr_factor: [1, 300]", "lr_fcator: [1]"), "no axis 'lr_fcator'"),
        (("lr_factor: [1, 300]", "lr_factor: [1, x]"), "'x' is not a number above 0"),
        (("lr_factor: [1, 300]", "lr_factor: [1, 1]"), "twice"),
        (("updates_per_batch: [2, 8]", "updates_per_batch: [3]"), "3 updates cannot be made from rollout.prompts = 4"),
        (("updates_per_batch: [2, 8]", "rollout.stalenes: [0]"), "did you mean 'rollout.staleness'"),
        (("eval.every=1", "eval.every=0"), "judged by its accuracy"),
        (("grid:\n  lr_factor: [1, 300]\n  updates_per_batch: [2, 8]\n", ""), "has no grid"),
        (("lr_factor: [1, 300]", "lr_factor: 1"), "grid"),
        (("seeds: 2", "seeds: two"), "seeds"),
        (("seeds: 2", "seeds: 100000000000"), "from 1 to 65536"),
        (("eval.every=1", "eval.every=1, run.seed=3"), "every run of a study has a seed of its own"),
        (("lr_factor: [1, 300]", "run.seed: [5, 6]"), "every run of a study has a seed of its own"),
        (("lr_factor: [1, 300]", "run.dir: [a, b]"), "every run of a study has a directory of its own"),
        (("lr_factor: [1, 300]", "updates_per_batch: [1]"), "the grid has 'updates_per_batch' twice"),
        (("  exact:", "  none:"), "a second arm is named 'none'"),
        (("lr_factor: [1, 300]", "train.epochs: [1, 3]"), "updates_per_batch: decides train.epochs"),
        (("eval.every=1", "eval.every=1, train.minibatch=2"), "updates_per_batch: decides train.minibatch"),
        (("lr_factor: [1, 300]", "mask: [clip, none]"), "grid.mask: decides mask, which is set as well"),
        (("lr_factor: [1, 300]", "train: [1, 2]"), "no axis 'train'"),
    ],
)
def test_a_faulty_grid_is_refused_before_anything_is_trained(grid, change, message):
    grid.write_text(grid.read_text().replace(*change))
    done = run_augur("frontier", grid, check=False)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not (grid.parent / "out").exists()


def one_cell(grid):
    """The grid with one cell, one arm and one seed, at a constant learning rate."""
    text = grid.read_text().replace("[1, 300]", "[1]").replace("[2, 8]", "[2]").replace("seeds: 2", "seeds: 1")
    text = text.replace("  exact: [mask=predictive-kl-exact]\n", "")
    grid.write_text(text.replace("train.steps=2", "train.steps=2, train.schedule=constant"))
    return grid.parent / "out" / "none" / "lr_factor-1.updates_per_batch-2" / "seed-0"


@pytest.mark.slow
def test_more_steps_are_trained_and_fewer_are_read_from_what_is_there(grid):
    run = one_cell(grid)
    frontier = grid.parent / "out" / "frontier.json"
    run_augur("frontier", grid)
    two = json.loads(frontier.read_text())
    done = run_augur("frontier", grid, "train.steps=4")
    assert "not finished" not in done.stdout and len(accuracy_of(run)) == 5
    four = json.loads(frontier.read_text())["arms"][0]["cells"][0]
    assert four["final_accuracy"] == accuracy_of(run)[-1]
    written = (run / "metrics.jsonl").stat().st_mtime_ns
    run_augur("frontier", grid)
    assert json.loads(frontier.read_text()) == two and (run / "metrics.jsonl").stat().st_mtime_ns == written


def test_runs_that_broke_down_have_no_final_accuracy(grid):
    run = one_cell(grid)
    run_augur("frontier", grid, "train.lr=1e30", "train.max_bad_updates=1")
    cell = json.loads((grid.parent / "out" / "frontier.json").read_text())["arms"][0]["cells"][0]
    assert (run / "breakdown.json").exists() and cell["broken"] == cell["counted"] == 1
    assert cell["final_accuracy"] is None and cell["runs"][0]["final"] is None and cell["runs"][0]["start"] > 0
    with (grid.parent / "out" / "frontier.csv").open() as file:
        assert [row["final"] for row in csv.DictReader(file)] == ["nan"]


def test_a_finished_run_of_another_configuration_is_not_taken_for_this_one(grid):
    grid.write_text(
        grid.read_text().replace("[1, 300]", "[1]").replace("[2, 8]", "[2]").replace("seeds: 2", "seeds: 1")
    )
    run_augur("frontier", grid)
    done = run_augur("frontier", grid, "rollout.temperature=0.9", check=False)
    assert done.returncode == 2 and "rollout.temperature" in done.stderr


def test_a_finished_run_of_other_files_is_not_taken_for_this_one(grid, tmp_path):
    one_cell(grid)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i} =", "answer": "1"}) + "\n" for i in range(8)))
    run_augur("frontier", grid, f"data.train=[{data}]")
    data.write_text(data.read_text().replace('"3 ="', '"9 ="'))
    done = run_augur("frontier", grid, f"data.train=[{data}]", check=False)
    assert done.returncode == 2 and "data.jsonl: other content" in done.stderr


def test_masks_may_be_an_axis(grid):
    grid.write_text(
        grid.read_text()
        .replace("lr_factor: [1, 300]", "mask: [clip, none]")
        .replace("none: [mask=none]", "small: []")
        .replace("exact: [mask=predictive-kl-exact]", "large: [rollout.support=40]")
    )
    done = run_augur("frontier", grid, "--draw")
    assert "16 of 16 runs are not finished" in done.stdout


def test_compare_sends_a_grid_to_frontier(grid):
    done = run_augur("compare", grid, check=False)
    assert done.returncode == 2 and "augur frontier" in done.stderr


def test_the_recipe_reads(tmp_path):
    done = run_augur("frontier", ROOT / "recipes" / "frontier-tiny.yaml", "--draw", "--dir", tmp_path / "out")
    assert "360 of 360 runs are not finished" in done.stdout
