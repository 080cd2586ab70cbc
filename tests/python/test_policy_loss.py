"""policy_loss against plain float64 torch: value, gradient, aggregation, and what must never leak."""

import ast
from types import SimpleNamespace
from typing import ClassVar, Optional

import pytest
import torch

import augur
from augur import MaskRule
from conftest import truth_file
from mask_data import MASKS, divergence, make_batch, reference_loss

RULES = [MaskRule.preset(name) for name in MASKS] + [
    MaskRule(support="binary", direction="ratio", delta=0.05),
    MaskRule(proximity="tv", support="binary", direction="ratio"),
    MaskRule(proximity="reverse_kl", support="binary", direction="ratio"),
    MaskRule(delta=0.05, delta_negative=0.3, ratio_cap=1.2),
    MaskRule(dual_clip=1.5),
    MaskRule(outside_budget=0.3),
]


def gradient(loss, logits):
    (g,) = torch.autograd.grad(loss, logits)
    return g


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.text)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_loss_and_gradient_equal_plain_torch(rule, temperature, device):
    logits, ids, logprobs, advantages = make_batch(seed=3)
    logits = (logits * temperature).requires_grad_()
    weights = torch.rand(len(ids), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    out = augur.policy_loss(rule, *(x.to(device) for x in (logits, ids, logprobs, advantages, weights)), temperature)
    keep = out.decision.keep.cpu()
    assert rule.proximity == "none" or 0 < keep.sum() < len(keep)
    expected = reference_loss(rule, keep, logits, ids, logprobs, advantages, weights, temperature)
    if rule.ratio_cap is None:
        torch.testing.assert_close(out.loss.cpu(), expected, rtol=1e-10, atol=1e-12)
    g = gradient(out.loss, logits)
    torch.testing.assert_close(g, gradient(expected, logits), rtol=1e-8, atol=1e-12)
    assert torch.all(g[~keep] == 0)
    if rule.proximity in ("kl", "tv", "reverse_kl"):
        far = divergence(rule, logits, ids, logprobs, temperature).detach()
        torch.testing.assert_close(out.decision.divergence.cpu(), far, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(
        out.logprobs.cpu(), torch.log_softmax(logits / temperature, -1).gather(1, ids[:, :1]).squeeze(1).detach()
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.text)
def test_decisions_equal_decide_on_the_gathered_logprobs(rule):
    logits, ids, logprobs, advantages = make_batch(seed=4)
    out = augur.policy_loss(rule, logits, ids, logprobs, advantages)
    log_pi = torch.log_softmax(logits, -1)
    in_support = torch.zeros_like(log_pi).scatter_add_(1, ids.clamp(min=0), (ids >= 0).double()) > 0
    square = (2 * log_pi).exp().masked_fill(in_support, 0).sum(1)
    d = augur.decide(rule, logprobs, log_pi.gather(1, ids.clamp(min=0)), advantages, 60, square)
    for ours, theirs in zip(out.decision[:5], d[:5], strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in MASKS if MaskRule.preset(name).ratio_cap is None])
def test_gradcheck_in_float64(name):
    logits, ids, logprobs, advantages = make_batch(tokens=10, vocab=14, k=5, seed=5)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: augur.policy_loss(name, z, ids, logprobs, advantages).loss, (logits,))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_entropy_and_reference_terms_pass_gradcheck(kind):
    logits, ids, logprobs, advantages = make_batch(tokens=6, vocab=11, k=4, seed=6)
    logits.requires_grad_()
    reference = logprobs[:, 0] - 0.3

    def loss(z):
        return augur.policy_loss(
            "none", z, ids, logprobs, advantages, temperature=0.8, softcap=5.0, entropy_bonus=0.3,
            reference_logprobs=reference, kl_coef=0.2, reference_kl=kind,
        ).loss  # fmt: skip

    assert torch.autograd.gradcheck(loss, (logits,))
    z = 5 * torch.tanh(logits / 5) / 0.8
    log_pi = torch.log_softmax(z, -1)
    y = log_pi.gather(1, ids[:, :1]).squeeze(1)
    x = reference - y
    term = {"k1": -x, "k2": x**2 / 2, "k3": x.exp() - x - 1}[kind]
    entropy = -(log_pi.exp() * log_pi).sum(1)
    expected = (-(y - logprobs[:, 0]).exp() * advantages - 0.3 * entropy + 0.2 * term).mean()
    torch.testing.assert_close(loss(logits), expected)


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [(torch.float32, 1e-4, 1e-6), (torch.bfloat16, 2e-2, 1e-4), (torch.float16, 2e-3, 1e-5)]
)
def test_low_precision_logits_give_the_float64_gradient_to_rounding(dtype, rtol, atol, device):
    logits, ids, logprobs, advantages = make_batch(tokens=64, vocab=1000, k=20, seed=7)
    low = logits.to(dtype).to(device).requires_grad_()
    high = logits.to(dtype).double().requires_grad_()
    rest = ids, logprobs.float().double(), advantages.float().double()
    for rule in RULES:
        a = augur.policy_loss(rule, low, *(x.to(device) for x in rest))
        b = augur.policy_loss(rule, high, *rest)
        clear = (b.decision.divergence - rule.delta).abs() > 1e-4
        assert torch.equal(a.decision.keep.cpu()[clear], b.decision.keep[clear])
        torch.testing.assert_close(a.logprobs.cpu().double(), b.logprobs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(a.entropy.cpu().double(), b.entropy, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient(a.loss, low).cpu().double(), gradient(b.loss, high), rtol=rtol, atol=atol)


def verl_functions(*names):
    """Functions of verl's core_algos.py and torch_functional.py, which need more to import than the tests have."""
    space = {"torch": torch, "Any": object, "Optional": Optional, "ActorConfig": object, "AlgoConfig": AlgoConfig}
    space |= {"DictConfig": dict, "register_policy_loss": lambda name: lambda f: f}
    for path in ("verl/utils/torch_functional.py", "verl/trainer/ppo/core_algos.py"):
        for node in ast.parse(truth_file(path).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                exec(compile(ast.Module([node], []), path, "exec"), space)  # noqa: S102
        space["verl_F"] = SimpleNamespace(**{name: space[name] for name in names if name in space})
    return [space[name] for name in names]


class AlgoConfig:
    """verl's, which its loss refuses."""


class VerlActor(dict):
    """verl's actor configuration, as far as its loss reads it."""

    clip_ratio, clip_ratio_low, clip_ratio_high = 0.2, 0.2, 0.28
    global_batch_info: ClassVar[dict] = {}


def test_the_dual_clip_has_the_gradient_of_verls_vanilla_loss(device):
    vanilla, *_ = verl_functions("compute_policy_loss_vanilla", "agg_loss", "masked_mean", "masked_sum")
    logits, ids, logprobs, advantages = make_batch(tokens=400, seed=15, drift=1.5)
    logits.requires_grad_()
    ours = augur.policy_loss("clip-dual", *(x.to(device) for x in (logits, ids, logprobs, advantages)))
    log_pi = torch.log_softmax(logits, -1).gather(1, ids[:, :1]).T
    arguments = logprobs[:, :1].T, log_pi, advantages[None], torch.ones(1, 400, dtype=torch.float64)
    theirs, figures = vanilla(*arguments, config=VerlActor())
    torch.testing.assert_close(gradient(ours.loss, logits), gradient(theirs, logits), rtol=1e-9, atol=1e-14)
    plain = augur.policy_loss("clip", logits, ids, logprobs, advantages)
    dual = (~ours.decision.keep.cpu() & plain.decision.keep).double().mean().item()
    assert dual == pytest.approx(figures["actor/pg_clipfrac_lower"]) and dual > 0.02
    clipped = figures["actor/pg_clipfrac"] + figures["actor/pg_clipfrac_lower"]
    assert ours.metrics["actor/pg_clipfrac"].value == pytest.approx(clipped)


def test_nothing_leaks_from_rows_that_do_not_count(device):
    logits, ids, logprobs, advantages = make_batch(tokens=20, seed=8, dtype=torch.float32)
    weights = torch.ones(20)
    weights[3] = 0
    ids[4], logprobs[4] = -1, -torch.inf
    clean = [x.to(device) for x in (logits, ids, logprobs, advantages, weights)]
    dirty = [x.clone() for x in clean]
    dirty[0][3, :] = torch.nan
    dirty[0][4, 7] = torch.inf
    for rule in RULES:
        results = []
        for batch in (clean, dirty):
            z = batch[0].clone().requires_grad_()
            out = augur.policy_loss(rule, z, *batch[1:])
            results.append((out.loss.detach(), gradient(out.loss, z)))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])
        assert torch.isfinite(results[1][1]).all()


def test_an_infinite_logit_in_a_masked_row_reaches_neither_loss_nor_gradient(device):
    logits, ids, logprobs, advantages = make_batch(tokens=5, seed=9, dtype=torch.float32)
    advantages[:] = -1
    logits[2, ids[2, 0]] = -torch.inf  # the sampled token has lost all its mass: outside, and lowered further
    z = logits.to(device).requires_grad_()
    out = augur.policy_loss("dppo-topk-kl", z, *(x.to(device) for x in (ids, logprobs, advantages)))
    assert not out.decision.keep[2]
    assert torch.isfinite(out.loss)
    g = gradient(out.loss, z)
    assert torch.isfinite(g).all() and torch.all(g[2] == 0)


def test_padding_columns_are_never_read(device):
    logits, ids, logprobs, advantages = make_batch(seed=10, dtype=torch.float32)
    padded = torch.cat([logits, torch.full((len(ids), 5), torch.nan)], 1)
    plain, wide = (x.to(device).requires_grad_() for x in (logits, padded))
    rest = [x.to(device) for x in (ids, logprobs, advantages)]
    a = augur.policy_loss("predictive-kl-uniform", plain, *rest)
    b = augur.policy_loss("predictive-kl-uniform", wide, *rest, vocab_size=60)
    torch.testing.assert_close(a.loss, b.loss)
    g = gradient(b.loss, wide)
    torch.testing.assert_close(gradient(a.loss, plain), g[:, :60])
    assert torch.all(g[:, 60:] == 0)


def test_peaked_and_large_logits_stay_accurate(device):
    logits, ids, logprobs, advantages = make_batch(tokens=50, vocab=500, k=20, seed=11, peak=20)
    low = augur.policy_loss(
        MaskRule(tail="exact"), *(x.to(device) for x in (logits.float(), ids, logprobs, advantages))
    )
    high = augur.policy_loss(
        MaskRule(tail="exact"), logits.float().double(), ids, logprobs.float().double(), advantages
    )
    torch.testing.assert_close(low.logprobs.cpu().double(), high.logprobs, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(low.decision.divergence.cpu().double(), high.decision.divergence, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [0, 1])
def test_empty_and_single_batches_work(tokens, device):
    logits, ids, logprobs, advantages = (x[:tokens].to(device) for x in make_batch(tokens=5, seed=12))
    z = logits.clone().requires_grad_()
    out = augur.policy_loss(MaskRule(), z, ids, logprobs, advantages)
    out.loss.backward()
    assert z.grad.shape == z.shape and torch.isfinite(out.loss)
    assert out.metrics["mask/outside"].denominator == tokens


def test_metrics_are_sums_that_add_up_over_a_split():
    batch = make_batch(tokens=60, seed=13)
    weights = torch.full((60,), 1 / 60, dtype=torch.float64)
    whole = augur.policy_loss(MaskRule(), *batch, weights).metrics
    parts = [augur.policy_loss(MaskRule(), *(x[s] for x in batch), weights[s]) for s in (slice(0, 17), slice(17, 60))]
    for name, metric in whole.items():
        if name == "actor/pg_loss":
            assert sum(p.loss.item() for p in parts) == pytest.approx(metric.value)
            continue
        joined = parts[0].metrics[name] + parts[1].metrics[name]
        assert joined.numerator == pytest.approx(metric.numerator)
        assert joined.denominator == metric.denominator
    assert whole["mask/masked"].value == (~augur.policy_loss(MaskRule(), *batch).decision.keep).double().mean()


@pytest.mark.parametrize(
    "aggregation",
    ["token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"],
)
def test_aggregations_equal_the_padded_matrix_formulas(aggregation):
    lengths = [3, 0, 5, 1]
    losses = torch.randn(4, 6, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    per_sequence = (losses * mask).sum(1)
    count = torch.tensor(lengths, dtype=torch.float64)
    expected = {
        "token-mean": per_sequence.sum() / count.sum(),
        "token-sum": per_sequence.sum(),
        "seq-mean-token-mean": (per_sequence / count.clamp(min=1)).sum() / 3,
        "seq-mean-token-sum": per_sequence.sum() / 3,
        "seq-mean-token-sum-norm": per_sequence.sum() / 3 / 6,
    }[aggregation]
    sequences = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    sequences = torch.cat([sequences, torch.tensor([-1])])  # one token that does not count
    weights = augur.token_weights(sequences, aggregation, horizon=6)
    packed = torch.cat([losses[mask], torch.tensor([99.0], dtype=torch.float64)])
    torch.testing.assert_close((weights.double() * packed).sum(), expected, rtol=1e-6, atol=1e-7)


def test_an_unknown_aggregation_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'token-mean'"):
        augur.token_weights(torch.zeros(3), "token-maen")


def loss_with(**changes):
    logits, ids, logprobs, advantages = make_batch(tokens=4, dtype=torch.float32)
    arguments = {"logits": logits, "support_ids": ids, "support_logprobs": logprobs, "advantages": advantages}
    return augur.policy_loss(MaskRule(), **{**arguments, **changes})


def changed_ids(token, column, value):
    ids = make_batch(tokens=4)[1].clone()
    ids[token, column] = ids[token, 1] if value == "twin" else value
    return ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.zeros(5, 60)}, r"support_ids: has shape \[4, 9\], expected \[5, any\]"),
        ({"logits": torch.zeros(4, 60, dtype=torch.int32)}, "logits: has dtype Int"),
        ({"support_ids": torch.zeros(4, 9)}, "support_ids: has dtype Float"),
        ({"support_ids": changed_ids(2, 3, "twin")}, "support_ids: token 2, column 3: id .* appears twice"),
        ({"support_ids": changed_ids(1, 2, 60)}, "token 1, column 2: id 60 is outside the vocabulary of 60"),
        ({"support_ids": changed_ids(1, 0, -1)}, "token 1, column 0: the sampled token is missing"),
        ({"support_ids": changed_ids(1, 3, -1)}, "token 1, column 3: an unused column has a log-prob"),
        ({"weights": torch.ones(3)}, r"weights: has shape \[3\], expected \[4\]"),
        ({"weights": torch.ones(4, dtype=torch.bool)}, r"weights: has dtype Bool, .*augur\.token_weights\(sequences\)"),
        (
            {"weights": torch.ones(4, dtype=torch.int64)},
            r"weights: has dtype Long, .*augur\.token_weights",
        ),
        ({"logits": torch.zeros(2, 2, 60)}, r"logits: has shape \[2, 2, 60\], expected \[T, V\]: one row per response"),
        ({"temperature": 0.0}, "temperature: is 0"),
        ({"vocab_size": 61}, "vocab_size: is 61, but the logits have 60 columns"),
        ({"reference_kl": "k4"}, "unknown estimator 'k4'"),
        ({"reference_kl": "k3"}, "reference_logprobs: are missing"),
        ({"softcap": -1.0}, "softcap: is -1"),
        ({"kl_coef": 0.5, "reference_logprobs": torch.zeros(4)}, "reference_kl: is not given, and kl_coef = 0.5"),
    ],
)
def test_bad_input_names_argument_position_and_remedy(changes, message):
    with pytest.raises(ValueError, match=message):
        loss_with(**changes)


@pytest.mark.parametrize("rule", ["", " "])
def test_an_empty_rule_is_refused(rule):
    logits, ids, logprobs, advantages = make_batch(tokens=4)
    with pytest.raises(ValueError, match="rule: is .*; pass a MaskRule or the name of a preset"):
        augur.policy_loss(rule, logits, ids, logprobs, advantages)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_a_reference_that_is_no_number_makes_no_number_of_the_loss(kind, device):
    logits, ids, logprobs, advantages = (x.to(device) for x in make_batch(tokens=4, dtype=torch.float32))
    for value in (torch.nan, -torch.inf):  # the second is bounded
        reference = torch.full([4], -1.0, device=device)
        reference[2] = value
        out = augur.policy_loss(
            "none", logits, ids, logprobs, advantages, kl_coef=1.0, reference_logprobs=reference, reference_kl=kind
        )
        assert torch.isnan(out.loss) == (value != value)


@pytest.mark.gpu
def test_tensors_on_different_devices_are_refused():
    with pytest.raises(ValueError, match="advantages: is on cpu while logits is on cuda:0"):
        batch = make_batch(tokens=4)
        augur.policy_loss(MaskRule(), *(x.cuda() for x in batch[:3]), batch[3])


@pytest.mark.gpu
@pytest.mark.parametrize(("columns", "dtype"), [(16_384, torch.float32), (16_384, torch.float64)])
def test_a_support_wider_than_a_kernels_usual_memory_has_its_gradient(columns, dtype):
    batch = make_batch(tokens=3, vocab=columns + 100, k=columns, dtype=dtype)

    def gradient_on(device):
        logits, ids, logprobs, advantages = (x.to(device) for x in batch)
        z = logits.clone().requires_grad_()
        augur.policy_loss("none", z, ids, logprobs, advantages, entropy_bonus=0.1).loss.backward()
        return z.grad.cpu()

    torch.testing.assert_close(gradient_on("cuda"), gradient_on("cpu"), rtol=1e-4, atol=1e-6)
    many = make_batch(tokens=1, vocab=80_000, k=70_000, dtype=dtype)
    z = many[0].cuda().requires_grad_()
    loss = augur.policy_loss("none", z, *(x.cuda() for x in many[1:])).loss
    with pytest.raises(ValueError, match="support_ids has 70000 columns, and this GPU takes"):
        loss.backward()


@pytest.mark.slow
def test_opcheck_and_compile_pass(device):
    logits, ids, logprobs, advantages = (x.to(device) for x in make_batch(seed=14, dtype=torch.float32))
    z = logits.clone().requires_grad_()
    arguments = (z, ids, logprobs, advantages, None, None, MaskRule().text, 1.0, 0, 0.0, 0.0, 0.0, "none", True)
    torch.library.opcheck(torch.ops.augur.policy_loss, arguments, raise_exception=True)

    rule = MaskRule(tail="exact")

    def step(z):
        return augur.policy_loss(rule, z * 2, ids, logprobs, advantages).loss

    torch.testing.assert_close(gradient(torch.compile(step, fullgraph=True)(z), z), gradient(step(z), z))
