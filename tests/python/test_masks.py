"""MaskRule and decide: golden cases, agreement over dtypes and devices, and the messages for bad input."""

import pickle
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch

import augur
from augur import MaskRule
from conftest import recorded
from mask_data import make_batch


def test_golden_cases_hold_for_every_preset(device):
    """The float64 truth of tests/data/make_mask_cases.py."""
    cases = recorded("mask_cases.jsonl")
    names = cases[0]["expect"].keys()  # test_rules.py holds the other presets to their formulas
    assert names <= set(MaskRule.presets()) and all(case["expect"].keys() == names for case in cases)
    for name in names:
        rule = MaskRule.preset(name)
        for vocab in {case["vocab"] for case in cases}:
            batch = [case for case in cases if case["vocab"] == vocab]
            columns = max(len(case["ids"]) for case in batch)

            def padded(key, batch=batch, columns=columns):
                rows = [case[key] + [-torch.inf] * (columns - len(case[key])) for case in batch]
                return torch.tensor(rows, device=device)

            d = augur.decide(
                rule,
                padded("behaviour"),
                padded("policy"),
                torch.tensor([case["advantage"] for case in batch], device=device),
                vocab,
                torch.tensor([case["tail_square"] for case in batch], device=device),
            )
            expected = [case["expect"][name] for case in batch]
            for key in ("ratio", "divergence", "direction"):
                truth = torch.tensor([e[key] for e in expected], dtype=torch.float64)
                torch.testing.assert_close(getattr(d, key).cpu().double(), truth, rtol=2e-6, atol=2e-6)
            for keep, e in zip(d.keep.tolist(), expected, strict=True):
                assert e["keep"] is None or keep == e["keep"]


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.29, 0.5])
@pytest.mark.parametrize("proximity", ["kl", "tv", "reverse_kl"])
def test_a_budget_puts_that_share_of_the_tokens_outside(proximity, budget, device):
    logits, ids, logprobs, advantages = make_batch(tokens=203, seed=2, dtype=torch.float32)
    ids[:3], logprobs[:3] = -1, -torch.inf  # three tokens without a support count for nothing
    policy = torch.log_softmax(logits, -1).gather(1, ids.clamp(min=0))
    rule = MaskRule(proximity=proximity, outside_budget=budget)
    arguments = [x.to(device) for x in (logprobs, policy, advantages)]
    d = augur.decide(rule, *arguments, 60)
    assert d.outside.sum() == int(200 * budget + 1e-9)
    assert d.divergence[d.outside].min() > d.divergence[3:][~d.outside[3:]].max()
    between = (d.divergence[d.outside].min() + d.divergence[3:][~d.outside[3:]].max()).item() / 2
    fixed = augur.decide(MaskRule(proximity=proximity, delta=between), *arguments, 60)
    assert torch.equal(d.keep, fixed.keep)


def test_a_budget_counts_the_tokens_of_weight(device):
    logits, ids, logprobs, advantages = make_batch(tokens=100, seed=3, dtype=torch.float32)
    weights = torch.ones(100)
    weights[::2] = 0
    rule = MaskRule(outside_budget=0.2)
    out = augur.policy_loss(rule, *(x.to(device) for x in (logits, ids, logprobs, advantages, weights)))
    assert out.metrics["mask/outside"] == (10.0, 50.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_inputs_are_decided_as_their_float64_values(dtype, device):
    logits, ids, logprobs, advantages = make_batch(tokens=200)
    behaviour = (logprobs - 1e-2).to(dtype)
    policy = (torch.log_softmax(logits, -1).gather(1, ids.clamp(min=0)) - 1e-2).to(dtype)
    for name in MaskRule.presets():
        sums = torch.full((200,), 1e-3), torch.full((200,), 1e-5)
        low = augur.decide(
            name,
            *(x.to(device) for x in (behaviour, policy, advantages.float())),
            60,
            *(x.to(device) for x in sums),
            [50] * 4,
        )
        high = augur.decide(name, behaviour.double(), policy.double(), advantages, 60, *sums, [50] * 4)
        torch.testing.assert_close(low.divergence.cpu().double(), high.divergence, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(low.direction.cpu().double(), high.direction, rtol=2e-6, atol=2e-6)
        assert torch.equal(low.keep.cpu(), high.keep)
        assert low.ratio.dtype == torch.float32


def test_a_preset_and_its_fields_are_the_same_rule():
    assert MaskRule() == MaskRule.preset("predictive-kl-aggregated")
    assert MaskRule(proximity="ratio", direction="ratio") == MaskRule.preset("clip")
    assert MaskRule.preset("predictive-kl-tight").delta == 0.05
    assert MaskRule.preset("clip-dual") == MaskRule(proximity="ratio", direction="ratio", dual_clip=3)
    assert MaskRule.preset("clip") == MaskRule(proximity="ratio", direction="ratio", dual_clip=0)
    assert MaskRule.preset("dppo-topk-reverse-kl") == MaskRule(proximity="reverse_kl", direction="ratio")
    assert MaskRule.preset("dppo-topk-kl dual_clip=3 ratio_cap=20").ratio_cap == 20


def test_the_fields_are_those_of_the_library():
    """The text form lists every field, in order; Python has no list of its own."""
    names = [word.split("=")[0] for word in MaskRule().text.split()]
    assert [f.name for f in fields(MaskRule)] == names
    assert all(f"{name} (" in MaskRule.__doc__ for name in names)
    for name in ("proximity", "direction", "support", "tail", "delta", "dual_clip", "outside_budget"):
        assert name in names


def test_numbers_may_be_text():
    assert MaskRule(delta="0.1", delta_negative="0", ratio_cap="5") == MaskRule(
        delta=0.1, delta_negative=0, ratio_cap=5
    )


def test_a_rule_can_be_copied_changed_hashed_and_pickled():
    rule = replace(MaskRule.preset("predictive-reverse-kl-exact"), delta=0.1)
    assert rule.tail == "exact" and "delta=0.1 " in rule.text
    assert pickle.loads(pickle.dumps(rule)) == rule and len({rule, rule}) == 1
    with pytest.raises(FrozenInstanceError):
        rule.delta = 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tail": "unifrom"}, "did you mean 'uniform'"),
        ({"proximity": "kld"}, "did you mean 'kl'"),
        ({"delta": 0.0}, "mask.delta: 0 is not a finite number above 0"),
        ({"delta": float("nan")}, "mask.delta: nan is not"),
        ({"delta": float("inf")}, "mask.delta: inf is not"),
        ({"delta_negative": -1.0}, "mask.delta_negative"),
        ({"ratio_cap": -1.0}, "mask.ratio_cap"),
        ({"dual_clip": 1.0}, "mask.dual_clip: 1 is not a finite number above 1"),
        ({"dual_clip": -1.0}, "mask.dual_clip"),
        ({"outside_budget": 1.0}, "mask.outside_budget: 1 is not a finite number above 0 and below 1"),
        ({"proximity": "kl,"}, "proximity: is 'kl,'; give one value"),
        ({"delta": "0.1,"}, "delta: is '0.1,'; give one value"),
        ({"proximity": "ratio", "outside_budget": 0.1}, "mask.outside_budget: sets delta"),
        ({"proximity": "reverse-kl"}, "did you mean 'reverse_kl'"),
    ],
)
def test_a_bad_rule_says_which_field(fields, message):
    with pytest.raises(ValueError, match=message):
        MaskRule(**fields)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'dppo-topk-kl'"):
        MaskRule.preset("dppo-topk-lk")


def decide_with(**changes):
    arguments = {
        "rule": MaskRule(),
        "behaviour": torch.log(torch.tensor([[0.5, 0.3], [0.6, 0.2]])),
        "policy": torch.log(torch.tensor([[0.4, 0.4], [0.5, 0.3]])),
        "advantages": torch.ones(2),
        "vocab_size": 10,
    }
    return augur.decide(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": torch.zeros(2, 3)}, r"policy: has shape \[2, 3\], expected \[2, 2\]"),
        ({"behaviour": torch.zeros(4)}, r"behaviour: has shape \[4\], expected \[any, any\]"),
        ({"behaviour": torch.zeros(2, 0), "policy": torch.zeros(2, 0)}, "behaviour: has no columns"),
        ({"advantages": torch.zeros(3)}, r"advantages: has shape \[3\], expected \[2\]"),
        ({"advantages": torch.ones(2, dtype=torch.int64)}, "advantages: has dtype Long"),
        ({"advantages": torch.tensor([1.0, torch.nan])}, "advantages: token 1: is nan"),
        ({"behaviour": torch.tensor([[-0.5, -2.0], [0.1, -2.0]])}, "behaviour: token 1, column 0: log-prob 0.1"),
        ({"policy": torch.tensor([[-0.5, 0.2], [-1.0, -2.0]])}, "policy: token 0, column 1: log-prob 0.2"),
        ({"behaviour": torch.tensor([[-0.1, -0.2], [-1.0, -2.0]])}, "behaviour: token 0: probabilities sum to 1.72"),
        ({"behaviour": torch.tensor([[-1.0, -2.0], [-torch.inf, -2.0]])}, "token 1, column 0: the sampled token"),
        ({"behaviour": torch.tensor([[-1.0, torch.nan], [-1.0, -2.0]])}, "token 0, column 1: log-prob is not a number"),
        ({"vocab_size": 1}, "token 0: a support of 2 tokens in a vocabulary of 1"),
        ({"vocab_size": 0}, "vocab_size: is 0"),
        ({"behaviour": torch.zeros(2, 2, device="meta")}, "policy: is on cpu while behaviour is on meta"),
        ({"behaviour": np.zeros((2, 2))}, "behaviour: is a ndarray; pass a torch.Tensor"),
        ({"advantages": [1.0, 1.0]}, "advantages: is a list; pass a torch.Tensor"),
        ({"advantages": None}, "advantages: is a NoneType"),
        ({"vocab_size": 5.0}, "vocab_size: is a float; pass a whole number"),
        ({"rule": None}, "rule: is a NoneType; pass a MaskRule or the name of a preset"),
        ({"rule": {"preset": "clip"}}, "rule: is a dict"),
    ],
)
def test_bad_input_names_argument_position_and_remedy(changes, message):
    with pytest.raises(ValueError, match=message):
        decide_with(**changes)


def test_decisions_have_no_gradient():
    policy = torch.log(torch.tensor([[0.4, 0.4], [0.5, 0.3]])).requires_grad_()
    assert not any(x.requires_grad for x in decide_with(policy=policy))


def test_the_exact_tail_asks_for_its_sum():
    with pytest.raises(ValueError, match="tail_square: is missing"):
        augur.decide("predictive-kl-exact", torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1), 5)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_opcheck_and_compile_pass(device, backend):
    _, ids, logprobs, advantages = make_batch(dtype=torch.float32)
    arguments = [x.to(device) for x in (logprobs, logprobs - 0.1, advantages)]
    torch.library.opcheck(torch.ops.augur.decide, (*arguments, 60, None, MaskRule().text, True), raise_exception=True)

    def twice(b, p, a):
        return augur.decide("dppo-topk-kl", b, p, a, 60).divergence * 2

    compiled = torch.compile(twice, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(*arguments), twice(*arguments))


@pytest.mark.parametrize("square", [-1.0, 0.6, 5.0, torch.inf, torch.nan])
def test_a_tail_square_that_no_tail_can_have_is_refused(square, device):
    """0.7 of the policy lies outside the support, so that its squares sum to 0.49 at most."""
    behaviour = torch.tensor([[0.9, 0.05], [0.9, 0.05]], device=device).log()
    policy = torch.tensor([[0.1, 0.2], [0.1, 0.2]], device=device).log()
    advantages = torch.full((2,), -1.0, device=device)

    def decide(second):
        squares = torch.tensor([0.01, second], device=device)
        return augur.decide("predictive-kl-exact", behaviour, policy, advantages, 50, squares)

    assert decide(0.01).keep.tolist() == decide(0.49).keep.tolist() == [False, False]
    with pytest.raises(ValueError, match="tail_square: token 1: is .* outside the support is 0.7"):
        decide(square)
    squares = torch.tensor([0.01, square], device=device)  # that no other tail reads
    assert augur.decide("predictive-kl-aggregated", behaviour, policy, advantages, 50, squares).keep.tolist() == [
        False,
        False,
    ]
    behaviour[1] = -torch.inf  # a token without a support has no tail to speak of
    assert decide(square).keep.tolist() == [False, False]


@pytest.mark.parametrize("value", [None, "kl delta=3", "", "delta=3"])
def test_a_field_of_a_rule_is_one_value(value):
    with pytest.raises(ValueError, match="proximity: is "):
        augur.MaskRule(proximity=value)
    assert augur.MaskRule(delta="0.1") == augur.MaskRule(delta=0.1)


def test_numbers_may_be_numpys_and_torchs():
    behaviour, advantages = torch.tensor([[0.5, 0.2]]).log(), torch.ones(1)
    for size in (np.int64(10), torch.tensor(10)):
        assert augur.decide("predictive-kl-aggregated", behaviour, behaviour, advantages, size).keep.tolist() == [True]
    for size in (10.0, torch.tensor(10.0), "10"):
        with pytest.raises(ValueError, match="vocab_size: is a .*; pass a whole number"):
            augur.decide("predictive-kl-aggregated", behaviour, behaviour, advantages, size)


def test_zero_means_none_where_the_text_of_a_rule_says_so():
    assert MaskRule(delta_negative=0, ratio_cap=0) == MaskRule()
    assert MaskRule(delta_negative=0).text == MaskRule.preset("predictive-kl-aggregated delta_negative=0").text
    with pytest.raises(ValueError, match="delta_negative: -1"):
        MaskRule(delta_negative=-1)
