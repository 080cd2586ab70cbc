"""Random batches for the mask tests, and the masks in plain float64 torch, written from the paper's formulas."""

import torch

from augur import MaskRule
from augur.masks import only_masks

# The presets that do no more than mask tokens, perhaps with a cap on the ratio: every loss takes them.
MASKS = [name for name in MaskRule.presets() if only_masks(MaskRule.preset(name))]


def record_support(logits, k, drift, generator):
    """Support ids and log-probs of a behaviour policy that differs from the logits by noise of size `drift`."""
    tokens, vocab = logits.shape
    noise = torch.randn(tokens, vocab, generator=generator, dtype=torch.float64)
    log_mu = torch.log_softmax(logits + drift * noise, -1)
    sampled = torch.multinomial(log_mu.exp() + 0.3 / vocab, 1, generator=generator)  # often outside the top K
    top = log_mu.topk(k).indices
    ids = torch.full((tokens, k + 1), -1, dtype=torch.int64)
    for t in range(tokens):
        rest = [i for i in top[t].tolist() if i != sampled[t].item()]
        row = [sampled[t].item(), *rest]
        ids[t, : len(row)] = torch.tensor(row)
    return ids, log_mu.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)


def make_advantages(tokens):
    return torch.tensor([1.0, -1.0, 0.37, -2.5, 0.0], dtype=torch.float64).repeat(tokens // 5 + 1)[:tokens]


def make_batch(tokens=40, vocab=60, k=8, drift=0.8, seed=0, dtype=torch.float64, peak=1.5):
    """Logits with the support of a behaviour policy that has drifted from them."""
    g = torch.Generator().manual_seed(seed)
    logits = peak * torch.randn(tokens, vocab, generator=g, dtype=torch.float64)
    ids, logprobs = record_support(logits, k, drift, g)
    return logits.to(dtype), ids, logprobs.to(dtype), make_advantages(tokens).to(dtype)


def make_head_batch(tokens=40, width=16, vocab=60, k=8, drift=0.8, seed=0, dtype=torch.float64, peak=1.5):
    """Hidden states [T, d], a head [V, d] and bias [V], whose logits are about `peak` large, with a support."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=g, dtype=torch.float64).to(dtype)
    weight = (peak / width**0.5 * torch.randn(vocab, width, generator=g, dtype=torch.float64)).to(dtype)
    bias = (0.5 * torch.randn(vocab, generator=g, dtype=torch.float64)).to(dtype)
    ids, logprobs = record_support(hidden.double() @ weight.double().T + bias.double(), k, drift, g)
    return hidden, weight, bias, (ids, logprobs.float().double(), make_advantages(tokens).float().double())


def divergence(rule, logits, ids, logprobs, temperature=1.0):
    """D over the support in plain torch."""
    used = ids >= 0
    if rule.support == "binary":
        used = used & (torch.arange(ids.shape[1]) == 0)
    log_pi = torch.log_softmax(logits / temperature, -1)
    mu = logprobs.exp().masked_fill(~used, 0)
    log_pi_k = log_pi.gather(1, ids.clamp(min=0)).masked_fill(~used, 0)
    pi = log_pi_k.exp().masked_fill(~used, 0)
    in_support = torch.zeros_like(log_pi).scatter_add_(1, ids.clamp(min=0), used.to(log_pi.dtype)) > 0
    mu_tail = (1 - mu.sum(1)).clamp(min=0)
    pi_tail = log_pi.exp().masked_fill(in_support, 0).sum(1)
    if rule.proximity == "tv":
        return ((mu - pi).abs().sum(1) + (mu_tail - pi_tail).abs()) / 2
    if rule.proximity == "reverse_kl":
        floored = mu_tail.clamp(min=2**-24)
        head = (pi * (log_pi_k - logprobs.masked_fill(~used, 0))).sum(1)
        return head + torch.where(pi_tail > 0, pi_tail * (pi_tail / floored).log(), 0)
    head = (mu * (logprobs.masked_fill(~used, 0) - log_pi_k)).sum(1)
    return head + torch.where(mu_tail > 0, mu_tail * (mu_tail / pi_tail).log(), 0)


def reference_loss(rule, keep, logits, ids, logprobs, advantages, weights, temperature=1.0):
    """The loss in plain torch: kept tokens with a live ratio, masked ones dropped."""
    log_pi = torch.log_softmax(logits / temperature, -1).gather(1, ids[:, :1]).squeeze(1)
    ratio = (log_pi - logprobs[:, 0]).exp()
    if rule.ratio_cap:
        ratio = torch.where(ratio > rule.ratio_cap, rule.ratio_cap + (log_pi - log_pi.detach()) * rule.ratio_cap, ratio)
    return torch.where(keep, -weights * ratio * advantages, 0).sum()
