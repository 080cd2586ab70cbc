"""Where a run goes on: never with the wrong weights, and nothing that was there is lost."""

import json
import shutil
import signal
import time

import pytest
from safetensors.torch import load_file

from conftest import run_augur
from train_runs import (
    STEPS,
    make_policy,
    read_lines,
    read_metrics,
    small_config,
    stands_at,
    start,
    steps_of,
    wait_for_step,
    without_times,
)


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def six_steps(tmp_path_factory, policy):
    """A run of six steps, complete, with the checkpoints 2, 4 and 6."""
    tmp_path = tmp_path_factory.mktemp("six")
    run_augur("train", small_config(tmp_path, policy, train__steps=6, checkpoint__every=2, checkpoint__keep=0))
    return tmp_path / "run"


@pytest.fixture
def config(tmp_path, policy, six_steps):
    """The configuration of a copy of that run, in tmp_path / "run"."""
    shutil.copytree(six_steps, tmp_path / "run")
    return small_config(tmp_path, policy, train__steps=6, checkpoint__every=2, checkpoint__keep=0)


def abandoned(run):
    return sorted((run / "checkpoints").glob("abandoned-*"))


def files_below(run):
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def without_evaluations(run):
    lines = without_times(read_metrics(run))
    return [{name: x for name, x in line["data"].items() if not name.startswith("val-")} for line in lines]


def new_line_begun(run):
    line = run / "line.json"
    return line.exists() and "moving" not in line.read_text()


OTHER_RATE = ("train.lr=0.02", "run.resume_changed=true")


@pytest.mark.parametrize("named", ["4", "{run}/checkpoints/global_step_4", "{run}/checkpoints/global_step_4/"])
def test_a_named_checkpoint_starts_a_new_line_and_auto_stays_on_it(tmp_path, config, named):
    run = tmp_path / "run"
    straight = tmp_path / "straight"
    shutil.copytree(run, straight)
    run_augur("train", config, f"run.dir={straight}", "run.resume=4", *OTHER_RATE, "train.steps=8")
    named = named.format(run=run)
    run_augur("train", config, f"run.resume={named}", *OTHER_RATE, "train.steps=5")
    assert stands_at(run) == 5 and steps_of(run) == list(range(6))
    [old] = abandoned(run)
    assert (old / "global_step_6" / "manifest.json").exists() and steps_of(old) == list(range(7))
    assert (old / "model" / "config.json").exists() and (old / "summary.json").exists()
    run_augur("train", config, *OTHER_RATE[:1], "train.steps=8")  # auto: from 5, not from the abandoned 6
    assert stands_at(run) == 8 and steps_of(run) == list(range(9)) and abandoned(run) == [old]
    assert without_evaluations(run) == without_evaluations(straight)  # the first ended with one, at step 5
    weights = [load_file(path / "model" / "model.safetensors") for path in (run, straight)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_the_next_command_with_other_settings_is_refused_not_sent_to_the_abandoned_line(tmp_path, config):
    run_augur("train", config, "run.resume=4", *OTHER_RATE, "train.steps=5")
    plain = run_augur("train", config, check=False)
    assert plain.returncode == 2 and "global_step_5" in plain.stderr and "train.lr: 0.02 -> 0.01" in plain.stderr


def test_more_steps_need_no_leave_even_where_the_schedule_ends_with_them(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=2, train__schedule="cosine", train__min_lr_ratio=0.5)
    run_augur("train", config)
    done = run_augur("train", config, "train.steps=4")
    assert "train.steps: 2 -> 4: from here on the learning rate follows" in done.stderr
    rates = [line["data"]["actor/lr"] for line in read_metrics(tmp_path / "run") if "actor/lr" in line["data"]]
    whole = small_config(
        tmp_path, policy, name="whole", train__steps=4, train__schedule="cosine", train__min_lr_ratio=0.5
    )
    run_augur("train", whole)
    expected = [line["data"]["actor/lr"] for line in read_metrics(tmp_path / "whole") if "actor/lr" in line["data"]]
    assert len(rates) == 4 and rates[2:] == expected[2:] and rates[1] < expected[1]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("resume", ["4", "never"])
def test_the_same_command_goes_on(tmp_path, config, resume, stop):
    """However it began: a checkpoint is gone back to, or the run begun anew, once."""
    run = tmp_path / "run"
    command = (f"run.resume={resume}", *OTHER_RATE, f"train.steps={STEPS}", "checkpoint.keep=1", "checkpoint.every=1")
    shutil.copytree(run, tmp_path / "straight")
    run_augur("train", config, f"run.dir={tmp_path / 'straight'}", *command)
    for step in (1, 7) if resume == "never" else (5, 9):
        process = start(config, *command)
        while process.poll() is None and not new_line_begun(run):
            time.sleep(0.005)
        wait_for_step(run, step, process)
        process.send_signal(stop)
        process.communicate(timeout=60)
    done = run_augur("train", config, *command, "log.console=true")
    assert "resuming from" in done.stderr
    assert without_times(read_metrics(run)) == without_times(read_metrics(tmp_path / "straight"))
    assert len(abandoned(run)) == 1 and (abandoned(run)[0] / "global_step_6").is_dir()


def test_never_moves_the_whole_run_aside_as_one(tmp_path, config):
    run = tmp_path / "run"
    before = files_below(run)
    run_augur("train", config, "run.resume=never", "train.steps=2")
    [old] = abandoned(run)
    moved = {name.removeprefix("checkpoints/"): content for name, content in before.items()}
    assert files_below(old) == moved
    assert {"summary.json", "model/model.safetensors", "config.yaml"} <= moved.keys()
    assert steps_of(run) == [0, 1, 2] and stands_at(run) == 2
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    # With other settings it is another command, and acts.
    run_augur("train", config, "run.resume=never", "train.steps=1", "train.lr=0.03")
    assert len(abandoned(run)) == 2 and steps_of(run) == [0, 1]


@pytest.mark.parametrize(
    "change",
    [
        "rollout.support=1000",
        "data.train=[nowhere.jsonl]",
        "model.path=nowhere",
        "eval.files=[nowhere.jsonl]",
        "eval.samples=100000000",
        "data.max_prompt_tokens=1",
        "rollout.prompts=1000000000000",
    ],
)
@pytest.mark.parametrize("resume", ["never", "2"])
def test_nothing_is_moved_before_every_check_has_passed(tmp_path, config, change, resume):
    before = files_below(tmp_path / "run")
    done = run_augur("train", config, f"run.resume={resume}", change, "run.resume_changed=true", check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert files_below(tmp_path / "run") == before


def test_a_move_that_was_interrupted_is_finished(tmp_path, config):
    run = tmp_path / "run"
    before = files_below(run)
    folder = run / "checkpoints" / "abandoned-1"
    folder.mkdir()
    (run / "metrics.jsonl").rename(folder / "metrics.jsonl")
    (run / "line.json").write_text(json.dumps({"resume": "never", "moving": "abandoned-1"}))
    run_augur("train", config, "train.steps=1")
    assert files_below(folder) == {name.removeprefix("checkpoints/"): content for name, content in before.items()}
    assert steps_of(run) == [0, 1]


def test_a_run_that_is_moved_as_a_whole_knows_how_it_began(tmp_path, policy, six_steps):
    for place in ("here", "there"):
        if place == "here":
            shutil.copytree(six_steps, tmp_path / place / "run")
        else:
            (tmp_path / "here").rename(tmp_path / place)
        config = small_config(tmp_path / place, policy, train__steps=6, checkpoint__every=2, checkpoint__keep=0)
        run_augur("train", config, "run.resume=4")
    assert [path.name for path in abandoned(tmp_path / "there" / "run")] == ["abandoned-1"]


def test_an_abandoned_line_can_be_taken_up_again(tmp_path, config):
    run = tmp_path / "run"
    shutil.copytree(run, tmp_path / "straight")
    run_augur("train", config, f"run.dir={tmp_path / 'straight'}", "train.steps=8")
    run_augur("train", config, "run.resume=2", *OTHER_RATE, "train.steps=5")
    [old] = abandoned(run)
    run_augur("train", config, f"run.resume={old / 'global_step_6'}", "train.steps=8")
    assert without_times(read_metrics(run)) == without_times(read_metrics(tmp_path / "straight"))
    assert (abandoned(run)[1] / "global_step_5").is_dir() and (old / "global_step_6").is_dir()


def test_a_line_from_another_run_goes_on_before_it_has_saved(tmp_path, config, policy):
    other = small_config(tmp_path, policy, name="other", checkpoint__every=0, train__steps=STEPS)
    source = tmp_path / "run" / "checkpoints" / "global_step_4"
    process = start(other, f"run.resume={source}")
    wait_for_step(tmp_path / "other", 6, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for command in ((), (f"run.resume={source}",)):
        run_augur("train", other, "train.steps=7", *command)
        assert steps_of(tmp_path / "other") == [5, 6, 7]
    run_augur("train", config, "train.steps=7")
    assert without_times(read_metrics(tmp_path / "other"))[-1] == without_times(read_metrics(tmp_path / "run"))[-1]


def test_auto_follows_the_pointer(tmp_path, config):
    run = tmp_path / "run"
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2\n")
    run_augur("train", config, "train.steps=3")
    assert stands_at(run) == 3 and steps_of(run) == [0, 1, 2, 3]
    assert sorted(p.name for p in abandoned(run)[0].glob("global_step_*")) == ["global_step_4", "global_step_6"]


@pytest.mark.parametrize(("steps", "offered"), [(4, "run.resume=4 goes back"), (5, "another run.dir trains anew")])
def test_fewer_steps_than_the_run_has_are_told_with_what_can_be_done(config, steps, offered):
    assert f"stands at step 6 already; {offered}" in run_augur("train", config, f"train.steps={steps}").stderr


def test_a_step_that_was_not_saved_is_named_with_those_that_were(tmp_path, config):
    done = run_augur("train", config, "run.resume=5", check=False)
    assert done.returncode == 2 and "global_step_5" in done.stderr and "2, 4, 6" in done.stderr
    done = run_augur("train", config, "run.resume=nowhere", check=False)
    assert done.returncode == 2 and "nowhere" in done.stderr


@pytest.mark.parametrize(
    "change",
    [
        "train.steps=7",
        "checkpoint.every=3",
        "checkpoint.keep=1",
        "log.tokens=3",
        "log.tensorboard=false",
        "eval.every=2",
    ],
)
def test_what_does_not_change_the_trajectory_may_change(tmp_path, config, change):
    run_augur("train", config, change)


@pytest.mark.parametrize(
    "change",
    [
        "train.lr=0.02",
        "run.seed=1",
        "rollout.max_tokens=9",
        "mask.delta=0.1",
        "eval.samples=3",
        "run.threads=2",
        "reward.timeout_s=31",
        "reward.interpreter=python3",
    ],
)
def test_what_changes_the_trajectory_or_its_measure_may_not(tmp_path, config, change):
    done = run_augur("train", config, change, check=False)
    faults = [line for line in done.stderr.splitlines() if "augur: warning: " not in line]
    assert done.returncode == 2 and len(faults) == 1 and change.split("=")[0] + ": " in faults[0]


@pytest.mark.parametrize("which", ["data.train", "eval.files"])
@pytest.mark.parametrize("change", ["longer", "same size"])
def test_a_changed_data_file_is_named_and_refused(tmp_path, policy, which, change):
    rows = [{"prompt": f"{i} 2 =", "answer": f"{i} 2"} for i in range(4)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = small_config(tmp_path, policy, train__steps=2, **{which.replace(".", "__"): f"[{data}]"})
    run_augur("train", config)
    rows[0]["answer"] = "0 3" if change == "same size" else "0 2 4"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = run_augur("train", config, "train.steps=3", check=False)
    assert refused.returncode == 2 and str(data) in refused.stderr and refused.stderr.count("\n") == 1
    assert "resume_changed" in refused.stderr and steps_of(tmp_path / "run") == [0, 1, 2]
    run_augur("train", config, "train.steps=3", "run.resume_changed=true")
    assert steps_of(tmp_path / "run") == [0, 1, 2, 3]
    run_augur("train", config, "train.steps=1", "run.resume=never")
    rows.pop()
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_augur("train", config, "train.steps=1", "run.resume=never")  # new data: begun anew, and said so
    assert len(abandoned(tmp_path / "run")) == 2


def test_a_run_of_other_settings_that_saved_nothing_is_moved_aside(tmp_path, policy):
    config = small_config(tmp_path, policy, checkpoint__every=0, train__steps=500)
    process = start(config)
    wait_for_step(tmp_path / "run", 2, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run_augur("train", config, "train.steps=1", "train.lr=0.5")
    assert steps_of(tmp_path / "run") == [0, 1]
    [old] = abandoned(tmp_path / "run")
    assert steps_of(old)[:3] == [0, 1, 2]


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again_over_its_results(tmp_path, config):
    run = tmp_path / "run"
    for number in (1, 2):
        for checkpoint in (run / "checkpoints").glob("global_step_*"):
            shutil.rmtree(checkpoint)
        before = files_below(run)
        done = run_augur("train", config, "train.steps=1", check=False)
        assert done.returncode == 2 and "run.resume=never" in done.stderr and done.stderr.count("\n") == 1
        assert f"stands at step {6 if number == 1 else 1}" in done.stderr
        assert files_below(run) == before
        run_augur("train", config, "train.steps=1", "run.resume=never")  # and once more where it has begun the run
        assert (abandoned(run)[number - 1] / "summary.json").read_bytes() == before["summary.json"]


def test_a_complete_run_without_its_checkpoints_directory_is_moved_aside(tmp_path, config):
    run = tmp_path / "run"
    shutil.rmtree(run / "checkpoints")
    before = files_below(run)
    run_augur("train", config, "train.steps=1")
    [old] = abandoned(run)
    assert files_below(old) == before and steps_of(run) == [0, 1]


@pytest.mark.parametrize("change", ["rollout.group=4", "rollout.group=3", "data", "train.lr=0.02"])
def test_responses_that_wait_are_learned_from_as_they_were_made_or_made_again(tmp_path, policy, change):
    rows = [{"prompt": f"{i} {9 - i} =", "answer": "7"} for i in range(10)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = dict(data__train=f"[{data}]", data__shuffle="false", rollout__staleness=1, train__steps=2)
    changes |= dict(train__minibatch=2, algorithm__entropy_bonus=1e-6)  # every response is learned from, and shown
    config = small_config(tmp_path, policy, eval__files="[]", log__tokens=16, **changes)
    run_augur("train", config)
    if change == "data":
        data.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    settings = [] if change == "data" else [change]
    done = run_augur("train", config, *settings, "run.resume_changed=true", "train.steps=4")
    kept = change == "train.lr=0.02"
    assert ("are dropped" in done.stderr) is not kept
    run = tmp_path / "run"
    ages = [line["data"]["rollout/age"] for line in read_metrics(run)]
    assert ages == [0, 1, 1, 1] if kept else ages == [0, 1, 0, 1]
    assert json.loads((run / "checkpoints" / "global_step_4" / "state.json").read_text())["position"] == 10
    group = int(change[-1]) if "group" in change else 2
    asked = rows[::-1] if change == "data" else rows
    shown = [line for line in read_lines(run / "tokens.jsonl") if line["step"] == 3]
    prompts = [response["prompt"].strip() for response in shown]
    assert sorted(prompts) == sorted(row["prompt"] for row in asked[4:6] for _ in range(group))


@pytest.mark.parametrize("key", ["model.path", "model.reference"])
def test_a_run_does_not_move_aside_what_it_reads(tmp_path, config, key):
    run = tmp_path / "run"
    before = files_below(run)
    changes = (f"{key}={run / 'model'}", "algorithm.kl_coef=0.1", "run.resume=never")
    for _ in range(2):
        done = run_augur("train", config, *changes, check=False)
        assert done.returncode == 2 and "would be moved aside" in done.stderr and "run.dir" in done.stderr
        assert files_below(run) == before
    run_augur("train", config, *changes, f"run.dir={tmp_path / 'other'}", "train.steps=1")


@pytest.mark.parametrize("name", ["metrics.jsonl", "tokens.jsonl", "model/config.json", "config.yaml", "report.html"])
@pytest.mark.parametrize("resume", ["auto", "never"])
def test_files_that_no_run_made_are_not_replaced(tmp_path, policy, name, resume):
    config = small_config(tmp_path, policy, train__steps=1)
    mine = tmp_path / "run" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("# mine\n" + config.read_text())
    before = files_below(tmp_path / "run")
    for _ in range(2):
        done = run_augur("train", config, f"run.resume={resume}", check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert name.split("/")[0] in done.stderr and "run.dir" in done.stderr
        assert files_below(tmp_path / "run") == before


def test_a_run_begins_among_files_of_other_names_and_where_one_was_killed_at_once(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=1)
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "model").mkdir()
    (run / "logs" / "slurm.out").write_text("mine")
    run_augur("train", config)
    assert (run / "logs" / "slurm.out").read_text() == "mine"
    early = tmp_path / "early"
    early.mkdir()
    shutil.copy(run / "config.yaml", early)
    shutil.copytree(run / "tensorboard", early / "tensorboard")
    shutil.copy(run / "tokens.jsonl", early)
    run_augur("train", config, f"run.dir={early}")
    assert steps_of(early) == [0, 1] and not abandoned(early)


def test_files_of_the_model_that_a_resumed_run_depends_on_are_compared(tmp_path, policy):
    other = make_policy(tmp_path / "other", seed=1)
    models = {name: shutil.copytree(policy, tmp_path / name) for name in ("base", "reference")}
    changes = dict(eval__files="[]", train__steps=1, lora__rank=2)
    changes |= dict(model__reference=models["reference"], algorithm__kl_coef=0.1)
    config = small_config(tmp_path, models["base"], **changes)
    run_augur("train", config)
    for name, file in [("base", "model.safetensors"), ("reference", "model.safetensors"), ("base", "tokenizer.json")]:
        path = models[name] / file
        right = path.read_bytes()
        path.write_bytes((other / file).read_bytes() + b" " * (file == "tokenizer.json"))
        done = run_augur("train", config, "train.steps=2", check=False)
        assert done.returncode == 2 and str(path) in done.stderr and done.stderr.count("\n") == 1, done.stderr
        path.write_bytes(right)
    run_augur("train", config, "train.steps=2")


@pytest.mark.parametrize("file", ["chat_template.jinja", "generation_config.json"])
def test_files_of_the_model_may_not_appear_change_or_go(tmp_path, policy, file):
    model = shutil.copytree(policy, tmp_path / "model")
    config = small_config(tmp_path, model, eval__files="[]", train__steps=1, data__chat_format="chatml")
    path = model / file
    path.unlink(missing_ok=True)

    def expect_refusal(why: str) -> None:
        done = run_augur("train", config, "train.steps=2", check=False)
        assert done.returncode == 2 and f"{path}: {why}" in done.stderr, done.stderr

    run_augur("train", config)
    path.write_text('{"eos_token_id": [269, 3]}')
    expect_refusal("was not there")
    run_augur("train", config, "run.resume=never")
    path.write_text('{"eos_token_id": [269, 4]}')
    expect_refusal("other content")
    path.unlink()
    expect_refusal("is gone")


def test_a_damaged_file_of_the_line_is_named(tmp_path, config):
    (tmp_path / "run" / "line.json").write_text('{"resume": "auto", "moving": 3}')
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and "line.json" in done.stderr


def test_weights_that_come_from_the_checkpoint_may_change(tmp_path, policy):
    model = shutil.copytree(policy, tmp_path / "model")
    config = small_config(tmp_path, model, eval__files="[]", train__steps=1)
    run_augur("train", config)
    shutil.copy(make_policy(tmp_path / "other", seed=1) / "model.safetensors", model)
    run_augur("train", config, "train.steps=2")


@pytest.mark.parametrize("change", ["train.lr=0.02", "eval.samples=3", "model.precision=bf16"])
def test_a_complete_run_keeps_what_it_says_where_no_step_is_left(tmp_path, config, change):
    """Its model would be written anew, by other settings than its figures."""
    before = files_below(tmp_path / "run")
    done = run_augur("train", config, change, "run.resume_changed=true", check=False)
    assert done.returncode == 2 and "has come to its last step, 6" in done.stderr
    assert change.split("=")[0] in done.stderr
    assert files_below(tmp_path / "run") == before
    run_augur("train", config, change, "run.resume_changed=true", "train.steps=7")
    assert [line["step"] for line in read_metrics(tmp_path / "run")][-1] == 7


@pytest.mark.parametrize("change", ["train.optimizer_dtype=bf16", "lora.rank=4"])
def test_what_gives_checkpoints_another_shape_is_refused_with_a_remedy_that_helps(tmp_path, config, change):
    for leave in ("false", "true"):
        command = ["train", config, change, f"run.resume_changed={leave}", "train.steps=7"]
        done = run_augur(*command, check=False)
        assert done.returncode == 2 and change.split("=")[0] + ": " in done.stderr and "another shape" in done.stderr
        assert "resume_changed=true" not in done.stderr
    run_augur("train", config, change, "run.resume=never", "train.steps=1")


def test_settings_that_shape_nothing_may_change(tmp_path, policy):
    config = small_config(tmp_path, policy, eval__files="[]", train__steps=1, lora__targets="[q_proj]")
    run_augur("train", config)
    command = ["train", config, "lora.targets=[k_proj]", "train.steps=2"]
    assert "run.resume_changed=true" in run_augur(*command, check=False).stderr
    run_augur(*command, "run.resume_changed=true")
