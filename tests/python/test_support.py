"""The recorded support against full distributions: building it, padding it, reading the policy at it."""

import pytest
import torch

import augur
from augur import MaskRule, support
from augur.support import Support, SupportRecorder
from mask_data import make_batch, make_head_batch


def full_rows(log_mu, tokens, k):
    """The rows an inference server gives: the top K in order of rank, and the sampled token where it is not there."""
    ids, logprobs = [], []
    for row, token in zip(log_mu, tokens, strict=True):
        top = row.topk(k).indices.tolist()
        chosen = top if token in top else [*top, token]
        ids.append(chosen)
        logprobs.append(row[chosen].tolist())
    return ids, logprobs


def sample(tokens=50, vocab=40, seed=0):
    g = torch.Generator().manual_seed(seed)
    log_mu = torch.log_softmax(2 * torch.randn(tokens, vocab, generator=g), -1)
    return log_mu, torch.randint(vocab, (tokens,), generator=g).tolist()


@pytest.mark.parametrize("k", [1, 5, 20, 40])
def test_ranked_rows_become_the_support_of_the_contract(k):
    log_mu, tokens = sample()
    found = support.from_ranked(tokens, *full_rows(log_mu, tokens, k), k)
    assert found.ids.dtype == torch.int32 and found.logprobs.dtype == torch.float32
    assert found.ids.shape == found.logprobs.shape == (50, k + 1)
    for ids, logprobs, row, token in zip(*found, log_mu, tokens, strict=True):
        used = ids >= 0
        expected = {*row.topk(k).indices.tolist(), token}
        assert ids[0] == token and set(ids[used].tolist()) == expected and used.sum() == len(expected)
        torch.testing.assert_close(logprobs[used], row[ids[used].long()])
        assert torch.all(logprobs[1:-1] >= logprobs[2:]) and torch.all(logprobs[~used] == -torch.inf)


def test_sampled_tokens_without_a_number_have_no_support():
    log_mu, tokens = sample()
    ids, logprobs = full_rows(log_mu, tokens, 5)
    logprobs[3][ids[3].index(tokens[3])] = None
    logprobs[4][ids[4].index(tokens[4])] = float("nan")
    logprobs[5][ids[5].index(tokens[5])] = float("-inf")
    ids[6] = [(tokens[6] + 1) % 40] * len(ids[6])
    ids[7], logprobs[7] = [], []
    found = support.from_ranked(tokens, ids, logprobs, 5)
    missing = (found.ids[:, 0] < 0).nonzero()[:, 0].tolist()
    assert missing == [3, 4, 5, 6, 7]
    assert torch.all(found.ids[missing] == -1) and torch.all(found.logprobs[missing] == -torch.inf)


def test_other_tokens_without_a_number_are_left_out():
    found = support.from_ranked([7], [[3, 7, 9]], [[None, -1.0, -2.0]], 4)
    assert found.ids.tolist() == [[7, 9, -1, -1, -1]]


def test_rows_that_do_not_match_the_tokens_are_refused():
    with pytest.raises(ValueError, match="2 tokens came with 1 rows of ids"):
        support.from_ranked([1, 2], [[1]], [[0.0]], 4)


def test_an_empty_response_has_an_empty_support():
    assert support.from_ranked([], [], [], 4).ids.shape == (0, 5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_recorder_sees_what_tokens_were_drawn_from(temperature, device):
    g = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(6, 4, 30, generator=g)  # [steps, batch, vocabulary]
    tokens = torch.randint(30, (4, 6), generator=g)
    recorder = SupportRecorder(8, temperature)
    for step in range(6):
        prefix = torch.cat([torch.zeros(4, 2, dtype=torch.int64), tokens[:, :step]], 1).to(device)
        scores = logits[step].to(device)
        assert recorder(prefix, scores) is scores
    found = recorder.finish(tokens[:, -1].to(device))
    log_mu = torch.log_softmax(logits / temperature, -1).transpose(0, 1)
    for row in range(4):
        expected = support.from_ranked(
            tokens[row].tolist(), *full_rows(log_mu[row], tokens[row].tolist(), 8), support_size=8
        )
        assert torch.equal(found.ids[row].cpu(), expected.ids)
        torch.testing.assert_close(found.logprobs[row].cpu(), expected.logprobs)


def test_responses_are_padded_with_tokens_that_have_no_support(device):
    responses = [Support(torch.ones(n, 3).int().to(device), torch.zeros(n, 3, device=device)) for n in (0, 2, 4)]
    ids, logprobs = support.pad_responses(responses, 5)
    assert ids.shape == logprobs.shape == (3, 5, 3)
    assert (ids[..., 0] >= 0).sum(1).tolist() == [0, 2, 4]
    assert torch.all(logprobs[ids < 0] == -torch.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gather_bytes", [1, 64 << 20])
def test_support_logits_equal_those_of_the_whole_head(dtype, gather_bytes, device, monkeypatch):
    monkeypatch.setattr(support, "_GATHER_BYTES", gather_bytes)
    hidden, weight, bias, (ids, _, _) = (
        x.to(device) if isinstance(x, torch.Tensor) else tuple(y.to(device) for y in x)
        for x in make_head_batch(tokens=64, width=64, vocab=300, k=20, dtype=dtype, peak=8)
    )
    found = support.support_logits(hidden, weight, bias, ids)
    whole = (hidden.double() @ weight.double().T + bias.double()).gather(1, ids.clamp(min=0))
    # One rounding of the product and one of the sum with the bias.
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    used = ids >= 0
    torch.testing.assert_close(found[used].double(), whole[used], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["predictive-kl-exact", "predictive-tv-exact", "predictive-kl-aggregated"])
def test_decisions_from_support_logits_equal_those_of_the_one_pass_head(name, device):
    hidden, weight, bias, recorded = make_head_batch(tokens=200, width=32, vocab=300, k=20, seed=2, dtype=torch.float32)
    hidden, weight, bias = (x.to(device) for x in (hidden, weight, bias))
    ids, logprobs, advantages = (x.to(device) for x in recorded)
    truth = augur.linear_policy_loss(name, hidden, weight, ids, logprobs.float(), advantages.float(), bias=bias)
    z = support.support_logits(hidden, weight, bias, ids)
    policy = z - z[:, :1] + truth.logprobs[:, None]
    square_sum = torch.logsumexp(2 * torch.log_softmax(hidden @ weight.T + bias, -1), -1)
    square = support.tail_square(square_sum, policy, ids >= 0, 300).float()
    decision = augur.decide(name, logprobs.float(), policy, advantages.float(), 300, square)
    for ours, theirs in zip(decision[:3], truth.decision[:3], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)
    near = (truth.decision.divergence - MaskRule.preset(name).delta).abs() < 1e-4
    near |= truth.decision.direction.abs() < 1e-5
    assert torch.equal(decision.keep[~near], truth.decision.keep[~near])


@pytest.mark.parametrize("gather_bytes", [1, 64 << 20])
def test_policies_read_off_logits_equal_float64(gather_bytes, device, monkeypatch):
    monkeypatch.setattr(support, "_GATHER_BYTES", gather_bytes)
    logits, ids, _, _ = make_batch(tokens=40, vocab=60, k=8, seed=6)
    rows = torch.arange(0, 40, 3)
    policy, square = support.read_logits(logits.float().to(device), rows.to(device), ids[rows].to(device), True)
    log_pi = torch.log_softmax(logits, -1)[rows]
    used = ids[rows] >= 0
    expected = log_pi.gather(1, ids[rows].clamp(min=0))
    torch.testing.assert_close(policy.cpu().double()[used], expected[used], rtol=1e-6, atol=1e-6)
    outside = log_pi.scatter(1, torch.where(used, ids[rows], ids[rows][:, :1]), -torch.inf)
    torch.testing.assert_close(square.cpu().double(), (2 * outside).exp().sum(1), rtol=1e-5, atol=1e-9)


def test_the_tail_square_stays_possible_where_the_support_holds_everything(device):
    policy = torch.tensor([[0.0, -30.0], [-1e-7, -40.0]], device=device)
    used = torch.ones(2, 2, dtype=torch.bool, device=device)
    square = support.tail_square(torch.tensor([1e-6, 0.0], device=device), policy, used, 50)
    tail = (1 - policy.double().exp().sum(1)).clamp(min=0)
    assert torch.all(square >= 0) and torch.all(square <= tail**2)


def test_the_tail_square_is_never_below_that_of_an_even_tail(device):
    policy = torch.tensor([[0.5, 0.2], [0.5, 0.2], [0.5, 0.2]], device=device).log()
    used = torch.tensor([[True, True], [True, True], [True, False]], device=device)
    squares = 0.29 + torch.tensor([0.09 / 8, 0.0, -0.04], device=device)  # over the vocabulary of 10
    found = support.tail_square(squares.log(), policy, used, 10)
    expected = [0.3**2 / 8, 0.3**2 / 8, 0.5**2 / 9]
    torch.testing.assert_close(found.cpu(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-8)


def test_mask_sums_equal_the_metrics_of_the_loss(device):
    logits, ids, logprobs, advantages = (x.to(device) for x in make_batch(tokens=60, seed=4))
    ids[7], logprobs[7] = -1, -torch.inf
    rule = MaskRule(delta=0.05, ratio_cap=1.2)
    out = augur.policy_loss(rule, logits, ids, logprobs, advantages, torch.ones_like(advantages))
    ours = support.mask_metrics(support.mask_sums(out.decision))
    for name, metric in ours.items():
        assert metric.value == pytest.approx(out.metrics[name].value), name
    assert set(ours) == {name for name in out.metrics if name.startswith("mask/")} - {"mask/ratio_cut"}
