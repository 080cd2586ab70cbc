"""The rules of docs/rules.md against their formulas in float64 (rule_truth.py)."""

import numpy as np
import pytest
import torch

import augur
from augur import MaskRule
from conftest import recorded
from mask_data import make_batch
from rule_truth import PENALTIES, TRUTH, Batch


def batch(seed, tokens=400, vocab=60, k=8, drift=0.8, peak=1.5):
    """Random tokens, with unused columns, tokens without a support, A = 0 and two advantages of a response's size."""
    rng = np.random.default_rng(seed)

    def log_softmax(x):
        return x - np.log(np.exp(x).sum(1, keepdims=True))

    logits = peak * rng.standard_normal((tokens, vocab))
    log_mu = log_softmax(logits)
    log_pi = log_softmax(logits + drift * rng.standard_normal((tokens, vocab)) * rng.random((tokens, 1)))
    top = np.argsort(-log_mu, 1)[:, :k]
    sampled = np.where(rng.random(tokens) < 0.7, top[:, 0], rng.integers(0, vocab, tokens))
    ids = np.concatenate([sampled[:, None], top], 1)
    used = np.concatenate([np.ones((tokens, 1), bool), top != sampled[:, None]], 1)
    used[rng.random(tokens) < 0.1, 1:] = False  # a support of the sampled token alone
    used[rng.random(tokens) < 0.05] = False  # none
    inside = np.zeros((tokens, vocab), bool)
    np.put_along_axis(inside, np.where(used, ids, sampled[:, None]), True, 1)
    behaviour = np.where(used, np.take_along_axis(log_mu, ids, 1), -np.inf)
    policy = np.where(used, np.take_along_axis(log_pi, ids, 1), np.nan)
    square, cube = (np.where(inside, 0, np.exp(power * log_pi)).sum(1) for power in (2, 3))
    lengths = []
    while sum(lengths) < tokens:  # the first response has one token, the second none
        lengths.append(min([1, 0, rng.integers(0, 30)][min(len(lengths), 2)], tokens - sum(lengths)))
    advantages = np.repeat(rng.choice([1.0, -1.0, 0.37, -2.5, 0.0], len(lengths)), lengths)
    mixed = rng.random(tokens) < 0.1  # a token's advantage may be its own
    advantages[mixed] = rng.choice([1.0, -2.5, 0.0], mixed.sum())
    return Batch(behaviour, policy, advantages, vocab, square, cube, lengths)


def decide(rule, batch, device="cpu", dtype=torch.float64):
    names = ("log_mu", "log_pi", "advantages", "square", "cube")
    mu, pi, advantages, square, cube = (torch.from_numpy(getattr(batch, x)).to(device, dtype) for x in names)
    return augur.decide(rule, mu, pi, advantages, batch.vocab, square, cube, batch.lengths)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", sorted(TRUTH))
def test_a_rule_is_its_formula(name, dtype, device):
    masked = 0
    for seed, drift in enumerate((0.0, 0.02, 0.1, 0.3, 1.0, 2.5)):
        tokens = batch(seed, drift=drift)
        d = decide(name, tokens, device, dtype)
        truth, here = TRUTH[name](tokens), tokens.present
        keep, coefficient = d.keep.cpu().numpy(), d.coefficient.cpu().double().numpy()
        assert not keep[~here].any() and not coefficient[~here].any()
        tolerance = {"rtol": 1e-8, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 1e-5}
        np.testing.assert_allclose(d.ratio.cpu().double().numpy()[here], tokens.ratio[here], **tolerance)
        np.testing.assert_allclose(d.divergence.cpu().double().numpy()[here], truth.divergence[here], **tolerance)
        clear = here & (truth.bound > (1e-9 if dtype == torch.float64 else 1e-5))
        assert clear[here].mean() > (0.9 if drift else 0)
        np.testing.assert_array_equal(keep[clear], truth.keep[clear])
        np.testing.assert_allclose(coefficient[clear], truth.coefficient[clear], **tolerance)
        masked += (~truth.keep[here]).sum()
    unmasked = ("cispo", "drpo", "r2vpo", "sapo", "spo", "tis", "topr", "vespo")
    assert masked == 0 if name in unmasked else masked > 20


@pytest.mark.parametrize("name", MaskRule.presets())
def test_a_token_that_is_kept_passes_with_its_coefficient_and_another_with_none(name):
    tokens = batch(7)
    d = decide(name, tokens)
    assert torch.isfinite(d.coefficient).all() and (d.coefficient[~d.keep] == 0).all()
    still = torch.from_numpy((tokens.advantages == 0) & tokens.present)
    assert d.keep[still].all(), "A = 0 keeps"
    rule = MaskRule.preset(name)
    if rule.weight == "ratio" and rule.scope not in ("gspo", "gmpo", "vespo"):
        capped = d.ratio.clamp(max=rule.ratio_cap or float("inf"))
        assert torch.equal(d.coefficient[d.keep], capped[d.keep])


@pytest.mark.parametrize("name", MaskRule.presets())
def test_where_both_policies_agree_every_token_passes_with_coefficient_one(name):
    tokens = batch(8, drift=0.0)
    d = decide(name, tokens)
    assert torch.equal(d.keep, torch.from_numpy(tokens.present))
    torch.testing.assert_close(d.coefficient[d.keep], torch.ones_like(d.coefficient[d.keep]))


@pytest.mark.parametrize(
    ("loose", "same"),
    [
        ("trm delta=1e6 delta_mean=1e6", "none"),
        ("opsm delta=1e6", "none"),
        ("m2po delta=1e6", "none"),
        ("vaco delta=1e6", "none"),
        ("cppo delta=1e6", "none"),
        ("mis-sequence clip_high=1e12 clip_low=1", "none"),
        ("spo epsilon=1e12", "none"),
        ("drpo epsilon=1e12", "none"),
        ("ripo delta=1e6 clip_low=0.2 clip_high=0.28", "clip"),
        ("predictive-kl-second-order eta=1e-12", "dppo-topk-kl-any"),
        ("cppo prefix_budget=1e6 position_floor=0.99999999", "dppo-binary-tv"),
    ],
)
def test_a_limit_turns_one_rule_into_another(loose, same):
    for seed in range(5):
        ours, theirs = decide(loose, batch(seed)), decide(same, batch(seed))
        assert torch.equal(ours.keep, theirs.keep)
        torch.testing.assert_close(ours.coefficient, theirs.coefficient)


@pytest.mark.parametrize("name", [name for name in MaskRule.presets() if MaskRule.preset(name).scope != "token"])
def test_a_response_is_decided_by_its_own_tokens(name):
    """Whatever else is in the batch, but for a rule of the batch."""
    tokens = batch(3, tokens=60)
    whole = decide(name, tokens)
    if MaskRule.preset(name).scope == "m2po":
        return
    begin = 0
    for length in tokens.lengths:
        rows = slice(begin, begin + length)
        alone = decide(name, Batch(*(x[rows] if isinstance(x, np.ndarray) else x for x in tokens[:6]), [length]))
        assert torch.equal(alone.keep, whole.keep[rows]) and torch.equal(alone.coefficient, whole.coefficient[rows])
        begin += length


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (None, "lengths: are missing, and scope trm decides by response"),
        ([2, 1], "lengths: leave 1 of the 4 tokens over"),
        ([2, 3], "lengths: do not add up to the 4 tokens"),
        ([5, -1], "lengths: do not add up"),
        ([[2, 2]], r"lengths: has shape \[1, 2\]"),
        ([2.0, 2.0], "lengths: has dtype Float"),
    ],
)
def test_lengths_that_do_not_cut_the_tokens_are_refused(lengths, message):
    behaviour = torch.tensor([[0.5, 0.4]]).log().repeat(4, 1)
    with pytest.raises(ValueError, match=message):
        augur.decide("trm", behaviour, behaviour, torch.ones(4), 10, lengths=lengths)


def test_the_second_order_asks_for_its_sums():
    log_probs = torch.zeros(1, 1)
    arguments = ("predictive-kl-second-order", log_probs, log_probs, torch.ones(1), 5)
    with pytest.raises(ValueError, match="tail_square: is missing"):
        augur.decide(*arguments)
    with pytest.raises(ValueError, match="tail_cube: is missing, and the second order needs it"):
        augur.decide(*arguments, torch.zeros(1))
    assert augur.decide("predictive-kl-second-order tail=uniform", *arguments[1:]).keep.all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dppo-topk-tv direction=second_order", "mask.direction: second_order needs the curvature of KL"),
        ("none window=ripo", "mask.window: sets the bounds of the ratio"),
        ("none penalty=ratio", "mask.penalty_coef: is 0 while penalty is ratio"),
        ("none penalty_coef=0.1", "mask.penalty_coef: is 0.1 while penalty is none"),
        ("sapo ratio_cap=2", "mask.ratio_cap: cuts the ratio, and weight is sapo"),
        ("none scope=gspo", "mask.proximity: is none, and scope gspo decides otherwise"),
        ("clip scope=trm", "mask.proximity: is ratio, and scope trm decides otherwise"),
        ("trm weight=sapo", "mask.weight: is a choice for each token, and scope is trm"),
        ("gspo dual_clip=3", "mask.dual_clip: is a choice for each token"),
        ("cppo delta_negative=0.1", "mask.delta_negative: is a choice for each token"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        MaskRule.preset(text)


TRAINED = [name for name in TRUTH if MaskRule.preset(name).scope == "token" and "second" not in name]


@pytest.mark.parametrize("name", TRAINED)
def test_a_loss_has_the_gradient_of_its_coefficients(name, device):
    logits, ids, logprobs, advantages = make_batch(tokens=60, seed=3, drift=1.5)
    ids[:3], logprobs[:3] = -1, -torch.inf
    logits.requires_grad_()
    weights = torch.rand(60, dtype=torch.float64)
    log_pi = torch.log_softmax(logits, -1).gather(1, ids.clamp(min=0))
    inputs = (logprobs.numpy(), log_pi.detach().numpy(), advantages.numpy(), 60, np.zeros(60), np.zeros(60), [60])
    coefficient = torch.from_numpy(TRUTH[name](Batch(*inputs)).coefficient)
    log_ratio = (log_pi - logprobs)[3:, 0]
    surrogate = -(weights * coefficient * advantages * log_pi[:, 0]).sum()
    penalty = (weights[3:] * PENALTIES.get(name, torch.zeros_like)(log_ratio)).sum()
    (expected,) = torch.autograd.grad(surrogate + penalty, logits)
    value = -(weights * coefficient * advantages).sum() + penalty.detach()

    out = augur.policy_loss(name, *(x.to(device) for x in (logits, ids, logprobs, advantages, weights)))
    torch.testing.assert_close(out.loss.cpu(), value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(out.loss, logits)[0], expected, rtol=1e-8, atol=1e-12)

    hidden = logits.detach().to(device).requires_grad_()  # the head is the identity
    recorded = [x.to(device) for x in (ids, logprobs, advantages, weights)]
    head = augur.linear_policy_loss(name, hidden, torch.eye(60, dtype=torch.float64, device=device), *recorded)
    torch.testing.assert_close(head.loss.cpu(), value, rtol=1e-9, atol=1e-12)
    (gradient,) = torch.autograd.grad(head.loss, hidden)
    torch.testing.assert_close(gradient.cpu(), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["gspo", "m2po", "predictive-kl-second-order"])
def test_the_losses_refuse_a_rule_that_they_do_not_follow(name):
    """Rather than train with another one."""
    logits, ids, logprobs, advantages = make_batch(tokens=4, dtype=torch.float32)
    with pytest.raises(ValueError, match="the loss does not follow"):
        augur.policy_loss(name, logits, ids, logprobs, advantages)
    with pytest.raises(ValueError, match=r"mask\.\w+: the loss does not follow"):
        augur.linear_policy_loss(name, logits, torch.eye(60), ids, logprobs, advantages)


def test_every_preset_has_a_truth():
    golden = recorded("mask_cases.jsonl")[0]["expect"].keys()
    assert set(TRUTH) | set(golden) == set(MaskRule.presets())


def test_a_rule_without_direction_masks_what_is_outside_whichever_way_it_goes():
    """The four signs of A and log r; A = 0 keeps."""
    behaviour = torch.tensor([[0.5, 0.4]]).log().repeat(6, 1)
    policy = torch.tensor([[0.05, 0.85], [0.9, 0.05]]).log().repeat(3, 1)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, 0.0])
    anywhere = augur.decide("dppo-topk-kl-any", behaviour, policy, advantages, 10)
    outward = augur.decide("dppo-topk-kl", behaviour, policy, advantages, 10)
    assert anywhere.outside.all()
    assert anywhere.keep.tolist() == [False, False, False, False, True, True]
    assert outward.keep.tolist() == [True, False, False, True, True, True]
    assert anywhere.direction.tolist() == [1, 1, -1, -1, 0, 0]
