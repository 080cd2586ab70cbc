"""What `augur train` and `augur sft` do with their settings, held to a second account of each: log-probs, figures,
learning rates, states, what is kept and shown."""

import dataclasses
import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import train_truth
from augur import MaskRule
from conftest import run_augur
from train_runs import (
    ALL,
    dump,
    log_probs_at,
    make_guesser,
    make_moe_policy,
    make_policy,
    read_lines,
    read_metrics,
    small_config,
    stands_at,
    train,
    without_times,
    write_config,
    write_guesses,
)


@pytest.fixture(scope="session")
def guesser(tmp_path_factory):
    return make_guesser(tmp_path_factory.mktemp("guesser"))


@pytest.fixture(scope="session")
def guesses(tmp_path_factory):
    return write_guesses(tmp_path_factory.mktemp("guesses") / "guesses.jsonl")


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


# Log-probs and temperature.


# Experts are replayed to the policy alone: a reference routes for itself.
KINDS = {"dense": (make_policy, {}), "experts": (make_moe_policy, dict(rollout__replay_routing="true"))}


# Of KL(policy || reference), x = log reference - log policy.
ESTIMATES = {"k1": lambda x: -x, "k2": lambda x: x * x / 2, "k3": lambda x: x.exp() - x - 1}


@pytest.mark.parametrize(("kind", "estimator"), [("dense", "k1"), ("dense", "k2"), ("dense", "k3"), ("experts", "k3")])
def test_reference_and_anchor_are_those_models_at_the_sampling_temperature(tmp_path, kind, estimator):
    make, replay = KINDS[kind]
    policy, other = make(tmp_path / "policy"), make(tmp_path / "other", seed=1)
    changes = replay | dict(algorithm__kl_coef=0.1, algorithm__kl_estimator=estimator, model__reference=other)
    changes |= dict(algorithm__anchor="recomputed", train__minibatch=4)
    [(samples, _)], figures = dump(tmp_path / "run", policy, rollout__temperature=0.6, train__epochs=1, **changes)
    own, reference = (AutoModelForCausalLM.from_pretrained(m, dtype=torch.float64) for m in (policy, other))
    own.config._experts_implementation = reference.config._experts_implementation = "eager"  # knows float64
    kl = []
    for sample in samples:
        columns = torch.tensor(sample["support_ids"]).view(-1, sample["columns"])
        now = log_probs_at(own, sample, 0.6)
        anchor = torch.tensor([math.nan if x is None else x for x in sample["support_logprobs"]]).view(columns.shape)
        expected = now.gather(1, columns.clamp(min=0)).float()
        torch.testing.assert_close(anchor[columns >= 0], expected[columns >= 0], rtol=1e-4, atol=1e-4)
        sampled = columns[:, :1]
        there = log_probs_at(reference, sample, 0.6).gather(1, sampled)[:, 0]
        torch.testing.assert_close(torch.tensor(sample["reference"]), there.float(), rtol=1e-4, atol=1e-4)
        x = there - now.gather(1, sampled)[:, 0]
        kl += ESTIMATES[estimator](x).tolist()
    assert figures["actor/kl_loss"] == pytest.approx(sum(kl) / len(kl), rel=1e-3)


LOSSES = {
    "masked": dict(mask__preset="predictive-kl-aggregated", mask__delta=0.02),
    "gspo": dict(algorithm__loss="gspo", algorithm__loss_clip_low=0.01, algorithm__loss_clip_high=0.2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_figures_of_a_step_are_means_over_all_its_tokens(tmp_path, policy, name):
    """Recomputed by transformers at each update's own weights; minibatches hold different numbers of tokens."""
    temperature = 0.7
    rule = dataclasses.replace(MaskRule.preset("predictive-kl-aggregated"), delta=0.02)
    updates, figures = dump(tmp_path, policy, rollout__temperature=temperature, train__minibatch=1, **LOSSES[name])
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64)
    sums = dict.fromkeys(["tokens", "log_ratio", "ratio", "masked", "entropy"], 0.0)
    counts = set()
    for samples, tensors in updates:
        counts.add(sum(len(s["response"]) for s in samples))
        for sample in samples:
            columns = torch.tensor(sample["support_ids"]).view(-1, sample["columns"])
            mu = torch.tensor([math.nan if x is None else x for x in sample["support_logprobs"]]).view(columns.shape)
            now = log_probs_at(model, sample, temperature)
            difference = now.gather(1, columns[:, :1])[:, 0] - mu[:, 0]
            advantage, count = sample["advantage"], len(sample["response"])
            sums["tokens"] += count
            sums["log_ratio"] -= float(difference.sum())
            sums["entropy"] -= float((now.exp() * now).sum())
            if name == "gspo":
                s = float(difference.mean().exp())
                clipped = s > 1.2 if advantage > 0 else s < 0.99
                sums["ratio"] += count * s
                sums["masked"] += count * (clipped and advantage != 0)
            else:
                sums["ratio"] += float(difference.exp().sum())
                keep = [
                    train_truth.keeps(rule, now[t].tolist(), columns[t].tolist(), mu[t].double().tolist(), advantage)
                    for t in range(count)
                ]
                sums["masked"] += keep.count(False)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(tensors["after." + key])
    assert len(counts) > 1 and sums["masked"] > 0
    for figure, total in (("actor/ppo_kl", "log_ratio"), ("mask/ratio", "ratio"), ("actor/entropy", "entropy")):
        assert figures[figure] == pytest.approx(sums[total] / sums["tokens"], rel=2e-3, abs=1e-5), figure
    assert figures["mask/masked"] == pytest.approx(sums["masked"] / sums["tokens"], abs=1.01 / sums["tokens"])
    assert figures["actor/pg_clipfrac"] == figures["mask/masked"]
    if name == "gspo":
        assert figures["mask/outside"] >= figures["mask/masked"]  # outside counts whichever way the update goes
        assert figures["mask/ratio_cut"] == figures["mask/ratio"]  # gspo cuts none
    assert figures["mismatch/logp_diff_max"] < 1e-4  # sampled at the trainer's temperature
    norms = [float(tensors["grad_norm"][0]) for _, tensors in updates]
    assert figures["actor/grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-4)


def test_gspo_masks_no_response_without_an_advantage(tmp_path, guesser):
    """Nothing is right; the entropy alone moves the model, and every response that became less likely is outside."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{i} =", "answer": "never"}) + "\n" for i in range(12)))
    changes = dict(data__train=f"[{rows}]", reward__overlong_buffer=0, algorithm__entropy_bonus=0.1, train__steps=1)
    clips = dict(algorithm__loss="gspo", algorithm__loss_clip_low=1e-6, algorithm__loss_clip_high=1e-6)
    figures, _ = train(tmp_path, guesser, **changes, **clips)
    assert figures[1]["actor/ppo_kl"] > 1e-3 and figures[1]["mask/masked"] == 0 < figures[1]["mask/outside"]


def test_the_mismatch_is_measured_from_the_policy_that_sampled(tmp_path, policy):
    """What the second step learns from is a step old; its one update begins with the ratios that the viewer shows."""
    changes = dict(rollout__staleness=1, train__steps=2, train__epochs=1, train__minibatch=0, train__lr=0.03)
    figures, responses = train(tmp_path, policy, log__tokens=ALL, algorithm__entropy_bonus=1e-6, **changes)
    ratios = [token["ratio"] for r in responses if r["step"] == 2 for token in r["tokens"]]
    logs = [math.log(ratio) for ratio in ratios]
    assert max(logs) > 0.1 and figures[2]["rollout/age"] == 1
    kl = sum(ratio - 1 - log for ratio, log in zip(ratios, logs, strict=True)) / len(ratios)  # of μ from π, by k3
    assert figures[2]["mismatch/kl"] == pytest.approx(kl, rel=1e-3)
    assert figures[2]["mismatch/logp_diff_mean"] == pytest.approx(sum(map(abs, logs)) / len(logs), rel=1e-3)
    assert figures[2]["mismatch/logp_diff_max"] == pytest.approx(max(map(abs, logs)), rel=1e-3)


# The optimizer.


def expected_rates(steps, warmup, lr, least):
    """Rises from lr / warmup in the first step, reaches lr in the last of the warm-up, then falls along a cosine."""
    rates = []
    for index in range(steps):
        if index < warmup:
            rates.append(lr * (index + 1) / warmup)
        else:
            left = 0.5 * (1 + math.cos(math.pi * (index - warmup) / (steps - warmup)))
            rates.append(lr * (least + (1 - least) * left))
    return rates


SCHEDULE = dict(warmup_steps=3, schedule="cosine", min_lr_ratio=0.1, lr=0.01, weight_decay=0, eps=1e-12)


def largest_change(before, after):
    return max(float((after[name] - value).abs().max()) for name, value in before.items())


def test_the_learning_rate_of_each_step(tmp_path, policy):
    schedule = {f"train__{key}": value for key, value in SCHEDULE.items()}
    figures, _ = train(tmp_path / "all", policy, train__steps=6, **schedule)
    assert [figures[step]["actor/lr"] for step in range(1, 7)] == pytest.approx(expected_rates(6, 3, 0.01, 0.1))
    # And it is the one the update takes: Adam's first step moves what has a gradient by the rate.
    updates, _ = dump(tmp_path / "first", policy, train__steps=6, **schedule)
    after = {key.removeprefix("after."): value for key, value in updates[0][1].items() if key.startswith("after.")}
    assert largest_change(load_file(policy / "model.safetensors"), after) == pytest.approx(0.01 / 3, rel=1e-3)


def sft(directory, policy, *flags, **changes):
    directory.mkdir(exist_ok=True)
    settings = dict(sft__batch=2, run__threads=1, model__precision="fp32", log__tensorboard="false") | changes
    settings |= dict(
        model__path=policy, run__dir=directory / "run", data__train="[task:sort:numbers=4:count=16:seed=3]"
    )
    sections = {}
    for key, value in settings.items():
        section, name = key.split("__")
        sections.setdefault(section, []).append(f"  {name}: {value}")
    lines = [line for section, entries in sections.items() for line in (f"{section}:", *entries)]
    (directory / "c.yaml").write_text("\n".join(lines) + "\n")
    run_augur("sft", directory / "c.yaml", "log.console=false", *flags)
    return {line["step"]: line["data"] for line in read_metrics(directory / "run")}


def test_the_learning_rate_of_each_step_of_sft(tmp_path, policy):
    schedule = {f"sft__{key}": value for key, value in SCHEDULE.items()}
    figures = sft(tmp_path / "all", policy, sft__steps=6, **schedule)
    assert [figures[step]["train/lr"] for step in range(1, 7)] == pytest.approx(expected_rates(6, 3, 0.01, 0.1))
    sft(tmp_path / "first", policy, sft__steps=1, **(schedule | dict(sft__schedule="constant")))
    after = load_file(tmp_path / "first" / "run" / "model" / "model.safetensors")
    assert largest_change(load_file(policy / "model.safetensors"), after) == pytest.approx(0.01 / 3, rel=1e-3)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_optimizers_states_are_kept_in_their_type(tmp_path, policy, dtype):
    train(tmp_path, policy, train__steps=1, train__optimizer_dtype=dtype)
    with safe_open(tmp_path / "run" / "checkpoints" / "global_step_1" / "tensors.safetensors", "pt") as file:
        types = {name.split(".")[0]: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    masters, averages = types.pop("master"), set(types.values())
    assert masters == "F32" and averages == {dict(fp32="F32", bf16="BF16")[dtype]}


def test_a_resumed_run_in_bf16_repeats_to_the_bit(tmp_path, policy):
    changes = dict(model__precision="bf16", train__steps=4, checkpoint__every=2, log__tokens=2)
    train(tmp_path / "straight", policy, **changes)
    train(tmp_path / "resumed", policy, **(changes | dict(train__steps=2)))
    train(tmp_path / "resumed", policy, **changes)
    runs = [tmp_path / name / "run" for name in ("straight", "resumed")]
    one, other = (without_times(read_metrics(run)) for run in runs)
    assert one == other and len(one) == 4
    files = [(run / "model" / "model.safetensors").read_bytes() for run in runs]
    assert files[0] == files[1]


def test_a_run_at_its_last_step_has_none_to_dump(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=1, eval__files="[]")
    run_augur("train", config)
    done = run_augur("train", config, "--dump-step", tmp_path / "dump", check=False)
    assert done.returncode == 2 and "last step" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "dump").exists()


def test_a_run_taken_back_stands_there_and_shows_each_step_once(tmp_path, policy):
    run, changes = tmp_path / "run", dict(checkpoint__every=2, log__tokens=ALL)
    _, responses = train(tmp_path, policy, train__steps=4, **changes)
    points = read_lines(run / "points.jsonl")
    figures, _ = train(tmp_path, policy, "run.resume=2", train__steps=2, **changes)
    assert stands_at(run) == 2 and set(figures) == {1, 2}
    state = json.loads((run / "checkpoints" / "global_step_2" / "state.json").read_text())
    assert json.loads((run / "summary.json").read_text())["train_seconds"] == state["train_seconds"] > 0
    figures, again = train(tmp_path, policy, train__steps=4, **changes)
    assert again == responses and {r["step"] for r in again} == {1, 2, 3, 4} == set(figures)
    assert read_lines(run / "points.jsonl") == points


def test_the_summary_of_a_resumed_run_knows_the_accuracy_before(tmp_path, guesser, guesses):
    changes = dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]", eval__samples=8, reward__overlong_buffer=0)
    summaries = []
    for name, stops in (("straight", [4]), ("resumed", [2, 4])):
        for steps in stops:
            figures, _ = train(tmp_path / name, guesser, train__steps=steps, run__seed=3, **changes)
        summaries.append(json.loads((tmp_path / name / "run" / "summary.json").read_text()))
    for summary in summaries:
        assert (summary["steps"], summary["seed"]) == (4, 3)
        assert summary["before"] == figures[0]["val-core/guess/acc/mean@8"] > 0
        assert summary["after"] == figures[4]["val-core/guess/acc/mean@8"] != summary["before"]


BAD = dict(train__minibatch=0, train__epochs=1, train__max_bad_updates=2, checkpoint__every=1)


def test_the_count_of_bad_updates_goes_on_after_a_resume(tmp_path, policy):
    train(tmp_path, policy, "--corrupt-gradient", 2, train__steps=2, **BAD)
    config = write_config(tmp_path / "c.yaml", policy, tmp_path / "run", train__steps=3, **BAD)
    done = run_augur("train", config, "--corrupt-gradient", 3, "log.console=false", check=False)
    assert done.returncode == 2 and "2 updates in a row" in done.stderr


def test_the_count_of_bad_updates_begins_anew_after_a_good_one(tmp_path, policy):
    train(tmp_path, policy, "--corrupt-gradient", 2, train__steps=3, **BAD)
    figures, _ = train(tmp_path, policy, "--corrupt-gradient", 4, train__steps=5, **BAD)
    assert [figures[step]["actor/skipped_updates"] for step in range(1, 6)] == [0, 1, 0, 1, 0]
    assert ["actor/grad_norm" in figures[step] for step in range(1, 6)] == [True, False, True, False, True]


# What is kept and shown.


@pytest.mark.parametrize(
    ("every", "keep", "kept"), [(1, 1, [5]), (1, 3, [3, 4, 5]), (1, 0, [1, 2, 3, 4, 5]), (2, 0, [2, 4, 5]), (0, 3, [5])]
)
def test_as_many_checkpoints_stay_as_asked_for(tmp_path, policy, every, keep, kept):
    train(tmp_path, policy, train__steps=5, checkpoint__every=every, checkpoint__keep=keep)
    found = sorted(int(p.name.split("_")[-1]) for p in (tmp_path / "run" / "checkpoints").glob("global_step_*"))
    assert found == kept


def test_the_viewer_shows_responses_of_any_length_whole(tmp_path, policy):
    model = tmp_path / "model"
    model.mkdir()
    for file in policy.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [271]}))
    changes = dict(rollout__max_tokens=100, rollout__prompts=1, rollout__group=2, train__steps=1, log__tokens=2)
    changes |= dict(train__minibatch=1, train__epochs=1)
    _, responses = train(tmp_path, model, **changes)
    assert max(len(r["tokens"]) for r in responses) == 100
    page = tmp_path / "page.html"
    run_augur("report", tmp_path / "run", "-o", page)
    data = page.read_text().split('<script type="application/json" id="data">')[1].split("</script>")[0]
    shown = [len(r["tokens"]) for run in json.loads(data)["runs"] for r in run["tokens"]["responses"]]
    assert sorted(shown) == sorted(len(r["tokens"]) for r in responses)
