"""One step of `augur train` against plain torch and transformers: loss, gradients and parameters after every update."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import train_truth
from augur import MaskRule
from conftest import run_augur
from mask_data import MASKS
from rule_truth import PENALTIES, TRUTH
from train_runs import make_policy, write_config

DEFAULTS = dict(advantage="grpo", aggregation="token-mean", loss="masked", mask="predictive-kl-aggregated")
ADVANTAGES = ["grpo", "grpo_no_std", "dr_grpo", "rloo", "reinforce_pp"]
AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
TIGHT = 0.02  # a divergence that a few large updates exceed


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


def dump_step(policy, tmp_path, case, **changes):
    """Runs the first step and returns what it dumped: lines of samples and tensors, by update."""
    settings = {
        "algorithm__advantage": case["advantage"],
        "algorithm__aggregation": case["aggregation"],
        "algorithm__loss": case["loss"],
        "mask__preset": case["mask"],
        "mask__delta": TIGHT,
    } | changes
    config = write_config(tmp_path / "c.yaml", policy, tmp_path / "run", **settings)
    run_augur("train", config, "--dump-step", tmp_path / "dump", "log.console=false")
    updates = []
    while (tmp_path / "dump" / f"update_{len(updates)}.jsonl").exists():
        stem = tmp_path / "dump" / f"update_{len(updates)}"
        lines = [json.loads(line) for line in stem.with_suffix(".jsonl").read_text().splitlines()]
        updates.append((lines, load_file(stem.with_suffix(".safetensors"))))
    return tmp_path / "dump" / "before", updates


def overlong(length):
    """SETTINGS: a buffer of all 8 tokens, penalty 1; a random model is never right."""
    return -length / 8


def check_advantages(kind, updates):
    samples = [s for lines, _ in updates[: len(updates) // 2] for s in lines]  # one epoch holds every response once
    lengths = [len(s["response"]) for s in samples]
    rewards = [overlong(n) for n in lengths]
    expected = train_truth.advantages(kind, rewards, [s["key"] for s in samples], lengths)
    torch.testing.assert_close(
        torch.tensor([s["advantage"] for s in samples]),
        torch.tensor(expected, dtype=torch.float32),
        rtol=1e-5,
        atol=1e-6,
    )
    assert len({round(a, 6) for a in expected}) > 3


def options_of(case, delta=TIGHT, **more):
    rule = MaskRule.preset(case["mask"])
    rule = dataclasses.replace(rule, delta=delta)
    return dict(
        aggregation=case["aggregation"], loss=case["loss"], rule=rule, horizon=8, temperature=1.0, clip_low=0.2,
        clip_high=0.28, tis_cap=2.0, entropy_bonus=0.0, kl_coef=0.0, kl="k3", truth=None, penalty=torch.zeros_like,
    ) | more  # fmt: skip


def logits_of(model):
    def logits(sample):
        tokens = sample["prompt"] + sample["response"]
        return model(torch.tensor([tokens])).logits[0, len(sample["prompt"]) - 1 : -1]

    return logits


def check_updates(before, updates, options, dtype=torch.float64, lr=0.01, tolerance=2e-4):
    """Follows Augur update by update with torch's own AdamW; returns how many tokens were masked in all."""
    model = AutoModelForCausalLM.from_pretrained(before, dtype=dtype, attn_implementation="eager")
    names = [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, eps=1e-3, weight_decay=0.01)
    masked = 0
    for lines, tensors in updates:
        loss, here = train_truth.minibatch_loss(lines, logits_of(model), options)
        masked += here
        optimizer.zero_grad()
        loss.backward()
        torch.testing.assert_close(tensors["loss"][0].double(), loss.detach().double(), rtol=tolerance, atol=tolerance)
        for name, parameter in model.named_parameters():
            scale = parameter.grad.abs().max()
            error = (tensors["gradient." + name].to(dtype) - parameter.grad).abs().max()
            assert error <= tolerance * scale + 1e-7, (name, float(error), float(scale))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.testing.assert_close(tensors["grad_norm"][0].double(), norm.double(), rtol=tolerance, atol=1e-6)
        optimizer.step()
        with torch.no_grad():
            for name in names:
                parameter = model.get_parameter(name)
                error = (tensors["after." + name].to(dtype) - parameter).abs().max()
                assert error <= 0.02 * lr, (name, float(error))
                parameter.copy_(tensors["after." + name])  # so that rounding does not add up over updates
    return masked


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_every_advantage(policy, tmp_path, kind):
    case = DEFAULTS | dict(advantage=kind)
    before, updates = dump_step(policy, tmp_path, case)
    assert len(updates) == 4
    check_advantages(kind, updates)
    assert check_updates(before, updates, options_of(case)) > 0


@pytest.mark.parametrize("kind", AGGREGATIONS)
def test_every_aggregation(policy, tmp_path, kind):
    case = DEFAULTS | dict(aggregation=kind)
    before, updates = dump_step(policy, tmp_path, case)
    check_updates(before, updates, options_of(case))


def moves_its_window(name):
    return MaskRule.preset(name).window != "fixed"


CUTS_NO_RATIO = [name for name in MASKS if MaskRule.preset(name).ratio_cap is None]


@pytest.mark.parametrize("name", [name for name in CUTS_NO_RATIO if not moves_its_window(name)])
def test_every_mask(policy, tmp_path, name):
    case = DEFAULTS | dict(mask=name)
    delta = TIGHT / 20 if name == "dppo-binary-tv" else TIGHT  # single tokens of this model move by less
    before, updates = dump_step(policy, tmp_path, case, mask__delta=delta)
    masked = check_updates(before, updates, options_of(case, delta))
    assert masked == 0 if name == "none" else masked > 0


OTHERS = [name for name in MaskRule.presets() if name in TRUTH and MaskRule.preset(name).scope != "m2po"]


@pytest.mark.parametrize(
    "name", [name for name in OTHERS if (name not in MASKS or moves_its_window(name)) and "second" not in name]
)
def test_every_rule_with_a_coefficient_of_its_own(policy, tmp_path, name):
    """By its formula in rule_truth.py, with the thresholds of the preset."""
    case = DEFAULTS | dict(mask=name)
    rule = MaskRule.preset(name)
    before, updates = dump_step(policy, tmp_path, case, mask__delta=rule.delta)
    more = dict(truth=TRUTH[name], penalty=PENALTIES.get(name, torch.zeros_like))
    check_updates(before, updates, options_of(case, rule.delta, **more))


@pytest.mark.parametrize("name", ["icepop", "mis-token"])
def test_a_mask_on_both_sides_of_the_ratio(policy, tmp_path, name):
    case, clips = DEFAULTS | dict(mask=name), dict(clip_low=0.01, clip_high=0.01)
    before, updates = dump_step(policy, tmp_path, case, **{f"mask__{key}": value for key, value in clips.items()})
    options = options_of(case)
    options["rule"] = dataclasses.replace(options["rule"], **clips)
    assert check_updates(before, updates, options) > 0


@pytest.mark.parametrize("name", ["cispo", "tis"])
def test_a_preset_that_caps_the_ratio_is_the_loss_of_that_name(policy, tmp_path, name):
    case = DEFAULTS | dict(mask=name)
    before, updates = dump_step(policy, tmp_path, case, mask__ratio_cap=1.02)
    more = dict(loss=name, clip_high=0.02, tis_cap=1.02)
    check_updates(before, updates, options_of(case, **more))


@pytest.mark.parametrize("loss", ["gspo", "cispo", "tis"])
def test_the_comparison_losses(policy, tmp_path, loss):
    case = DEFAULTS | dict(loss=loss)
    clips = dict(algorithm__loss_clip_low=0.01, algorithm__loss_clip_high=0.02, algorithm__tis_cap=1.05)
    before, updates = dump_step(policy, tmp_path, case, **clips)
    check_updates(before, updates, options_of(case, clip_low=0.01, clip_high=0.02, tis_cap=1.05))


@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_entropy_bonus_and_reference_kl(policy, tmp_path, kl):
    case = DEFAULTS
    changes = dict(algorithm__entropy_bonus=0.05, algorithm__kl_coef=0.1, algorithm__kl_estimator=kl)
    before, updates = dump_step(policy, tmp_path, case, **changes)
    assert all(len(s["reference"]) == len(s["response"]) for s in updates[0][0])
    check_updates(before, updates, options_of(case, entropy_bonus=0.05, kl_coef=0.1, kl=kl))


def test_a_temperature_divides_the_trainers_logits_too(policy, tmp_path):
    before, updates = dump_step(policy, tmp_path, DEFAULTS, rollout__temperature=0.7)
    check_updates(before, updates, options_of(DEFAULTS, temperature=0.7))


def test_in_float32_as_in_float64(policy, tmp_path):
    before, updates = dump_step(policy, tmp_path, DEFAULTS)
    check_updates(before, updates, options_of(DEFAULTS), dtype=torch.float32)


def test_the_first_update_is_on_policy_and_the_recorded_logprobs_are_transformers(policy, tmp_path):
    before, updates = dump_step(policy, tmp_path, DEFAULTS)
    model = AutoModelForCausalLM.from_pretrained(before, dtype=torch.float64)
    for sample in updates[0][0]:
        log_pi = torch.log_softmax(logits_of(model)(sample), -1)
        ids = torch.tensor(sample["support_ids"]).view(-1, sample["columns"])
        recorded = torch.tensor([float("nan") if x is None else x for x in sample["support_logprobs"]])
        expected = log_pi.gather(1, ids.clamp(min=0)).float()
        used = ids >= 0
        torch.testing.assert_close(recorded.view(ids.shape)[used], expected[used], rtol=1e-4, atol=1e-4)


def test_the_result_does_not_depend_on_the_split_into_micro_batches(policy, tmp_path):
    dumps = []
    for i, micro_tokens in enumerate((16384, 40, 1)):
        (tmp_path / str(i)).mkdir()
        _, updates = dump_step(policy, tmp_path / str(i), DEFAULTS, train__micro_tokens=micro_tokens)
        dumps.append(updates)
    for other in dumps[1:]:
        for (lines, tensors), (other_lines, other_tensors) in zip(dumps[0], other, strict=True):
            assert lines == other_lines
            for name, value in tensors.items():
                torch.testing.assert_close(other_tensors[name], value, rtol=1e-4, atol=3e-5, msg=name)


def test_a_recomputed_anchor_makes_the_first_update_exactly_on_policy(policy, tmp_path):
    case = DEFAULTS
    changes = dict(algorithm__anchor="recomputed", model__precision="fp8_rollout", train__epochs=1)
    _, updates = dump_step(policy, tmp_path, case, **changes)
    lines, tensors = updates[0]
    loss = -sum(len(s["response"]) * s["advantage"] for s in lines) / sum(len(s["response"]) for s in lines)
    torch.testing.assert_close(float(tensors["loss"][0]), loss, rtol=2e-3, atol=2e-3)


def test_truncated_importance_with_a_recomputed_anchor(policy, tmp_path):
    case = DEFAULTS | dict(loss="tis")
    changes = dict(algorithm__anchor="recomputed", algorithm__tis_cap=1.02, model__precision="fp8_rollout")
    before, updates = dump_step(policy, tmp_path, case, **changes)
    lines, tensors = updates[0]
    factors = [factor for sample in lines for factor in sample["importance"]]
    assert max(factors) == pytest.approx(1.02) and min(factors) < 0.99
    model = AutoModelForCausalLM.from_pretrained(before, dtype=torch.float64, attn_implementation="eager")
    loss, _ = train_truth.minibatch_loss(lines, logits_of(model), options_of(case, tis_cap=1.02))
    loss.backward()
    torch.testing.assert_close(tensors["loss"][0].double(), loss.detach(), rtol=1e-2, atol=2e-3)
    for name, parameter in model.named_parameters():  # within the rounding of bf16 products
        error = (tensors["gradient." + name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 0.03, (name, float(error))


def test_truncated_importance_scales_the_policy_gradient_alone(policy, tmp_path):
    case = DEFAULTS | dict(loss="tis")
    changes = dict(algorithm__anchor="recomputed", algorithm__tis_cap=0.5)
    changes |= dict(algorithm__entropy_bonus=1, algorithm__kl_coef=0.5, algorithm__kl_estimator="k1")
    before, updates = dump_step(policy, tmp_path, case, **changes)
    more = dict(tis_cap=0.5, entropy_bonus=1.0, kl_coef=0.5, kl="k1")
    check_updates(before, updates, options_of(case, **more))


def test_with_advantages_of_0_and_truncated_importance_the_loss_is_the_entropy(policy, tmp_path):
    changes = dict(algorithm__loss="tis", algorithm__anchor="recomputed", algorithm__tis_cap=0.9)
    changes |= dict(algorithm__entropy_bonus=1, reward__overlong_buffer=0, train__steps=1, train__epochs=1)
    run_augur("train", write_config(tmp_path / "c.yaml", policy, tmp_path / "run", train__minibatch=4, **changes))
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])["data"]
    assert row["critic/advantages/max"] == row["critic/advantages/min"] == 0
    assert row["actor/pg_loss"] == pytest.approx(-row["actor/entropy"], rel=1e-5)


def test_a_mask_measures_from_the_recomputed_anchor_with_truncated_importance(policy, tmp_path):
    case = DEFAULTS | dict(loss="tis")
    before, updates = dump_step(policy, tmp_path, case, algorithm__anchor="recomputed")
    assert check_updates(before, updates, options_of(case)) > 0
