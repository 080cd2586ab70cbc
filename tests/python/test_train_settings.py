"""What `augur train` and `augur sft` do with their settings, held to a second account of each: draws, dropped
responses, refills, learning rates, shaping, figures."""

import dataclasses
import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import train_truth
from augur import MaskRule
from conftest import run_augur
from train_runs import (
    END_TOKENS,
    dump,
    ids,
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

ALL = 1000  # responses in the viewer: more than any step here has
STILL = dict(train__lr=0, train__weight_decay=0, train__epochs=1, train__minibatch=0, log__tokens=ALL)
# A term for every token, so that responses without an advantage take part too.
EVERYONE = dict(algorithm__entropy_bonus=1e-6, reward__overlong_buffer=0)


@pytest.fixture(scope="session")
def guesser(tmp_path_factory):
    return make_guesser(tmp_path_factory.mktemp("guesser"))


@pytest.fixture(scope="session")
def guesses(tmp_path_factory):
    return write_guesses(tmp_path_factory.mktemp("guesses") / "guesses.jsonl")


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


# Draws.


@pytest.mark.parametrize("shuffle", ["true", "false"])
def test_each_epoch_draws_new_responses_to_the_same_prompts(tmp_path, policy, shuffle):
    changes = STILL | dict(data__train="[task:sort:numbers=4:count=4:seed=3]", train__steps=2, data__shuffle=shuffle)
    _, responses = train(tmp_path, policy, **changes)
    by_step = [{r["prompt"]: [] for r in responses if r["step"] == step} for step in (1, 2)]
    for response in responses:
        by_step[response["step"] - 1][response["prompt"]].append(ids(response))
    assert by_step[0].keys() == by_step[1].keys() and len(by_step[0]) == 4
    for prompt, drawn in by_step[0].items():
        assert drawn != by_step[1][prompt]


def test_an_epoch_has_every_prompt_once_and_the_next_another_order(tmp_path, guesser, guesses):
    changes = STILL | EVERYONE | dict(data__train=f"[{guesses}]", rollout__group=2, train__steps=6)
    _, responses = train(tmp_path, guesser, **changes)
    order = [r["prompt"].strip() for r in responses[::2]]
    every = {row["prompt"] for row in read_lines(guesses)}
    assert set(order[:12]) == set(order[12:]) == every and len(order) == 24
    assert order[:12] != order[12:]
    _, responses = train(tmp_path / "other", guesser, run__seed=1, **changes)
    assert [r["prompt"].strip() for r in responses[::2]] != order


def account(responses, step, prompts, group):
    """The groups of a step in the order of their draws: lists of (prompt, its source, tokens, reward)."""
    here = [(r["prompt"], r["data_source"], ids(r), r["reward"]) for r in responses if r["step"] == step]
    assert len(here) == prompts * group
    return [here[i : i + group] for i in range(0, len(here), group)]


def is_mixed(group):
    return len({reward for *_, reward in group}) > 1


@pytest.mark.parametrize("max_refills", [1, 10])
def test_dynamic_sampling_takes_the_next_mixed_groups_and_counts_what_it_drew(tmp_path, guesser, guesses, max_refills):
    """Draws depend on seed and place alone, so that a plain run shows every group there is to draw from."""
    prompts, group = 2, 2
    rows = tmp_path / "rows.jsonl"  # each of a source of its own
    sources = [row | {"data_source": f"guess {i}"} for i, row in enumerate(read_lines(guesses))]
    rows.write_text("".join(json.dumps(row) + "\n" for row in sources))
    changes = STILL | EVERYONE | dict(data__train=f"[{rows}]", rollout__prompts=prompts, rollout__group=group)
    plain, responses = train(tmp_path / "plain", guesser, train__steps=28, **changes)
    drawn = [g for step in sorted(plain) for g in account(responses, step, prompts, group)]
    assert 0.2 < sum(map(is_mixed, drawn)) / len(drawn) < 0.9
    figures, responses = train(
        tmp_path / "dynamic", guesser, train__steps=8, algorithm__dynamic_sampling="true",
        algorithm__max_refills=max_refills, **changes,
    )  # fmt: skip
    place = 0
    refilled = surplus = 0
    for step in range(1, 9):
        seen, kept, refills = [], [], 0
        while True:
            new = drawn[place : place + prompts]
            place += prompts
            seen += new
            kept += [g for g in new if is_mixed(g)]
            if len(kept) >= prompts or refills >= max_refills:
                break
            refills += 1
        surplus += len(kept) > prompts
        kept = kept[:prompts]
        refilled += refills
        data = figures[step]
        assert data["rollout/refills"] == refills
        assert data["rollout/groups"] == len(kept)
        assert data["rollout/equal_groups"] == pytest.approx(sum(not is_mixed(g) for g in seen) / len(seen))
        if kept:
            assert account(responses, step, len(kept), group) == kept
            rewards = [reward for g in kept for *_, reward in g]
            assert data["critic/score/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert refilled > 1 and surplus > 0


def test_an_end_token_at_the_limit_ends_a_response_by_itself(tmp_path, policy):
    out = tmp_path / "out.jsonl"
    run_augur("generate", policy, "--prompt", "1 2 =", "--max-tokens", 2, "--samples", 200, "--output", out)
    at_limit = [r for r in read_lines(out) if len(r["tokens"]) == 2]
    reasons = {(r["tokens"][-1] in END_TOKENS, r["finish_reason"]) for r in at_limit}
    assert reasons == {(True, "eos"), (False, "length")}


def test_a_stop_text_ends_responses_in_training_and_evaluation(tmp_path, guesser, guesses):
    changes = STILL | dict(data__train=f"[{guesses}]", rollout__stop='["7"]', train__steps=1, reward__overlong_buffer=0)
    (tmp_path / "free").mkdir()
    no_end = tmp_path / "model"
    no_end.mkdir()
    for file in guesser.iterdir():
        (no_end / file.name).write_bytes(file.read_bytes())
    (no_end / "generation_config.json").write_text(json.dumps({"eos_token_id": [271]}))
    evaluation = dict(eval__files=f"[{guesses}]", eval__samples=8, eval__every=1, eval__at_start="false")
    figures, responses = train(tmp_path / "stop", no_end, **changes, **evaluation)
    stopped = 0
    for response in responses:
        text = "".join(token["text"] for token in response["tokens"])
        assert ("7" in text) == (response["finish"] == "stop")
        assert "7" not in "".join(token["text"] for token in response["tokens"][:-1])
        stopped += "7" in text
    assert stopped > 4
    # Exact answers are possible only where a response ends at the stop text.
    assert figures[1]["val-core/guess/acc/mean@8"] > 0.1
    figures, _ = train(tmp_path / "free", no_end, **(changes | evaluation | dict(rollout__stop="[]")))
    assert figures[1]["val-core/guess/acc/mean@8"] == 0


# What is learned from.


def test_dropping_truncated_responses_leaves_exactly_those_out(tmp_path, policy):
    changes = dict(train__minibatch=4, train__epochs=1, algorithm__entropy_bonus=1e-6)
    [(whole, _)], figures = dump(tmp_path / "whole", policy, **changes)
    [(cut, _)], _ = dump(tmp_path / "cut", policy, algorithm__drop_truncated="true", **changes)
    ended = [s for s in whole if s["response"][-1] in END_TOKENS]
    assert 0 < len(ended) < len(whole)
    assert [s["response"] for s in cut] == [s["response"] for s in ended]
    assert [s["advantage"] for s in cut] == [s["advantage"] for s in ended]  # of the whole group
    assert figures["response_length/clip_ratio"] == pytest.approx(1 - len(ended) / len(whole))
    assert figures["response_length/mean"] == pytest.approx(sum(len(s["response"]) for s in whole) / len(whole))


def test_a_step_whose_responses_are_all_left_out_says_so(tmp_path, policy):
    changes = dict(rollout__max_tokens=1, reward__overlong_buffer=0, log__console="true")
    config = small_config(tmp_path, policy, algorithm__skip_equal_groups="true", **changes)
    said = run_augur("train", config, "train.steps=2").stderr
    assert said.count("step 1 made no update: every response was left out (algorithm.skip_equal_groups)") == 1
    assert "step 2 made no update" not in said
    assert [line["data"].get("actor/updates") for line in read_metrics(tmp_path / "run")][-2:] == [0, 0]


def test_a_step_that_dynamic_sampling_left_empty_says_why_and_shows_no_figures_of_nothing(tmp_path, policy):
    changes = dict(rollout__max_tokens=1, reward__overlong_buffer=0, log__console="true", eval__files="[]")
    changes |= dict(algorithm__dynamic_sampling="true", algorithm__max_refills=2, train__steps=1)
    said = run_augur("train", small_config(tmp_path, policy, **changes)).stderr
    assert "step 1 made no update: every response was left out (algorithm.dynamic_sampling, 2 refills)" in said
    assert "no update" in said.splitlines()[-1] and "nan" not in said


def test_skipping_equal_groups_leaves_exactly_those_out(tmp_path, guesser, guesses):
    changes = EVERYONE | dict(data__train=f"[{guesses}]", rollout__prompts=8, rollout__group=2, train__minibatch=8)
    [(whole, _)], _ = dump(tmp_path / "whole", guesser, train__epochs=1, **changes)
    [(cut, _)], _ = dump(tmp_path / "cut", guesser, train__epochs=1, algorithm__skip_equal_groups="true", **changes)
    mixed = [s for s in whole if s["advantage"] != 0]
    assert 0 < len(mixed) < len(whole)
    assert [(s["key"], s["response"]) for s in cut] == [(s["key"], s["response"]) for s in mixed]


POISON = 200


def make_poisoned(guesser, model):
    """After one certain token, which is drawn often, the activations overflow: what follows fails, what comes before
    is there. The last width is 0 for all other tokens, and a norm that multiplies it by 1e30 leaves them alone."""
    width = 31
    model.mkdir()
    for file in guesser.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    tensors = load_file(guesser / "model.safetensors")
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor[width] = 0
    tensors["model.embed_tokens.weight"][:, width] = 0
    tensors["model.embed_tokens.weight"][POISON, width] = 1
    tensors["model.layers.0.post_attention_layernorm.weight"][width] = 1e30
    tensors["lm_head.weight"][POISON, 0] = 1.2
    save_file(tensors, model / "model.safetensors")
    return model


def test_responses_that_failed_midway_are_counted_and_not_learned_from(tmp_path, guesser, guesses):
    model = make_poisoned(guesser, tmp_path / "model")
    changes = dict(data__train=f"[{guesses}]", train__epochs=1, train__minibatch=4, algorithm__entropy_bonus=1e-6)
    [(samples, tensors)], figures = dump(tmp_path / "run", model, **changes)
    failed = figures["rollout/failed"]
    assert 0 < failed < 16 and len(samples) == 16 - failed
    assert not any(POISON in s["response"][:-1] for s in samples)
    assert figures["actor/skipped_updates"] == 0 and math.isfinite(tensors["grad_norm"][0])


def test_failures_of_earlier_refills_are_not_those_of_this_one(tmp_path, guesser):
    """Every other prompt fails, and no group is mixed: each refill has as many failures as responses."""
    model, rows = make_poisoned(guesser, tmp_path / "model"), tmp_path / "rows.jsonl"
    prompts = [f"{POISON} =" if i % 2 else f"{i} =" for i in range(12)]
    rows.write_text("".join(json.dumps({"prompt": p, "answer": "no"}) + "\n" for p in prompts))
    changes = dict(data__train=f"[{rows}]", data__shuffle="false", rollout__max_tokens=1, reward__overlong_buffer=0)
    changes |= dict(algorithm__dynamic_sampling="true", algorithm__max_refills=2, train__steps=1)
    figures, _ = train(tmp_path / "run", model, **changes)
    assert figures[1]["rollout/failed"] == 24 and figures[1]["rollout/refills"] == 2


@pytest.mark.parametrize("penalty", [0.5, 2.0])
def test_overlong_shaping_falls_from_the_buffer_to_the_limit(tmp_path, guesser, guesses, penalty):
    changes = STILL | dict(data__train=f"[{guesses}]", train__steps=1, algorithm__entropy_bonus=1e-6)
    shaped = dict(reward__overlong_buffer=3, reward__overlong_penalty=penalty, rollout__max_tokens=8)
    figures, responses = train(tmp_path, guesser, **changes, **shaped)
    lengths = []
    for response in responses:
        right = ids(response) == [7]
        length = len(response["tokens"])
        assert response["reward"] == pytest.approx(right - penalty * max(0, length - 5) / 3)
        lengths.append(length)
    assert max(lengths) > 5 and len(responses) == 16
    rewards = [r["reward"] for r in responses]
    assert figures[1]["critic/rewards/min"] == pytest.approx(min(rewards))
    assert figures[1]["critic/rewards/mean"] == pytest.approx(sum(rewards) / 16)
    assert figures[1]["critic/score/mean"] == pytest.approx(sum(ids(r) == [7] for r in responses) / 16)


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
        assert figures["mask/outside"] == figures["mask/masked"]  # a response outside is clipped
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
    assert figures[1]["actor/ppo_kl"] > 1e-3 and figures[1]["mask/masked"] == figures[1]["mask/outside"] == 0


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


def test_what_waits_is_the_same_after_a_resume(tmp_path, guesser):
    """Scores that failed, responses that failed or were cut, refills: all that a step says of what it learned from."""
    model, rows = make_poisoned(guesser, tmp_path / "model"), tmp_path / "rows.jsonl"
    answers = [["no", "text"] if i % 4 == 1 else "7" if i % 4 else "7 9" for i in range(12)]
    rows.write_text("".join(json.dumps({"prompt": f"{i} =", "answer": a}) + "\n" for i, a in enumerate(answers)))
    changes = dict(data__train=f"[{rows}]", data__shuffle="false", rollout__staleness=2, rollout__max_tokens=2)
    changes |= dict(algorithm__dynamic_sampling="true", algorithm__max_refills=1, train__lr=0, train__weight_decay=0)
    changes |= dict(reward__max_errors=0.9, reward__overlong_buffer=0, checkpoint__every=2)
    straight, _ = train(tmp_path / "straight", model, train__steps=4, **changes)
    train(tmp_path / "resumed", model, train__steps=2, **changes)
    train(tmp_path / "resumed", model, train__steps=4, **changes)
    for name in ("reward/errors", "rollout/refills", "rollout/failed", "rollout/equal_groups", "critic/acc/mean",
                 "critic/answered/mean", "response_length/clip_ratio"):  # fmt: skip
        assert any(straight[step][name] > 0 for step in (3, 4)), name
    one, other = (without_times(read_metrics(tmp_path / name / "run")) for name in ("straight", "resumed"))
    assert one == other
    batches = [[line["data"]["perf/decode_batch"] for line in read_metrics(tmp_path / name / "run")]
               for name in ("straight", "resumed")]  # fmt: skip
    assert batches[0] == batches[1] and all(batches[0])


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


# Evaluation.

EVALUATION = dict(eval__every=1, eval__samples=8, train__steps=2, reward__overlong_buffer=0)


def evaluations(figures, name="mean@8"):
    return [figures[step][f"val-core/guess/acc/{name}"] for step in sorted(figures)]


def test_evaluations_draw_the_same_at_every_step_and_by_the_seed(tmp_path, guesser, guesses):
    changes = STILL | EVALUATION | dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]", log__tokens=0)
    found = set()
    for seed in (0, 1, 2):
        figures, _ = train(tmp_path / str(seed), guesser, run__seed=seed, **changes)
        here = evaluations(figures)
        assert len(here) == 3 and len(set(here)) == 1
        found.add(here[0])
    assert len(found) > 1


def test_evaluations_draw_apart_from_training_and_from_prompt_to_prompt(tmp_path, guesser, guesses):
    """With the same prompts, places and sampling, training and evaluation would else see the same responses, and so
    would equal prompts."""
    changes = STILL | EVALUATION | dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]", data__shuffle="false")
    changes |= dict(rollout__prompts=12, rollout__group=8, rollout__max_tokens=8, train__steps=1, log__tokens=0)
    figures, _ = train(tmp_path / "apart", guesser, **changes)
    assert figures[1]["critic/acc/mean"] != figures[0]["val-core/guess/acc/mean@8"]
    equal = tmp_path / "equal.jsonl"
    equal.write_text(guesses.read_text().splitlines()[0].join(["", "\n"]) * 12)
    changes |= dict(eval__files=f"[{equal}]", eval__samples=1, train__steps=0)
    figures, _ = train(tmp_path / "equal", guesser, **changes)
    assert 0 < figures[0]["val-core/guess/acc/mean@1"] < 1


def test_best_of_k_counts_any_right_answer_and_the_majority_of_two_is_the_first(tmp_path, guesser, guesses):
    changes = STILL | EVALUATION | dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]", log__tokens=0)
    changes |= dict(eval__prompts=1, eval__samples=2, train__steps=0)
    means, first = set(), set()
    for seed in range(8):
        figures, _ = train(tmp_path / str(seed), guesser, run__seed=seed, **changes)
        [mean], [best] = evaluations(figures, "mean@2"), evaluations(figures, "best@2/mean")
        [majority] = evaluations(figures, "maj@2/mean")
        assert best == (mean > 0)
        if mean == 0.5:
            first.add(majority)
        else:
            assert majority == mean
        means.add(mean)
    assert means >= {0.0, 0.5} and first == {0.0, 1.0}


def test_evaluation_samples_as_its_own_section_says(tmp_path, guesser, guesses):
    """Truncated to the most likely token, or greedy, every response is ANSWER; with room for 1 token none is cut."""
    changes = STILL | EVALUATION | dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]", train__steps=0)
    changes |= dict(log__tokens=0)
    plain = evaluations(train(tmp_path / "plain", guesser, **changes)[0])[0]
    assert 0.2 < plain < 0.8
    for key, value in (("temperature", 0), ("top_k", 1), ("top_p", 0.05)):
        figures, _ = train(tmp_path / key, guesser, **changes, **{f"eval__{key}": value})
        assert evaluations(figures) == [1.0], key
    hot = evaluations(train(tmp_path / "hot", guesser, eval__temperature=3, **changes)[0])[0]
    assert hot < plain / 2
