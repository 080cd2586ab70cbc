"""Masks and losses in plain torch from full logits, written from the formulas in docs/masks.md."""

import torch

from augur import MaskRule
from mask_data import divergence


def predicted_change(rule: MaskRule, logits, ids, logprobs):
    """The divergence's change per unit step along the sampled token's gradient: for the exact tail by differentiating
    the divergence itself, otherwise with the tail's squared mass as the rule's model has it."""
    log_pi = torch.log_softmax(logits, -1)
    pi = log_pi.exp()
    used = ids >= 0
    sampled = torch.zeros_like(pi).scatter(1, ids[:, :1], 1.0)
    if rule.tail == "exact":
        with torch.enable_grad():
            z = logits.detach().requires_grad_()
            (slope,) = torch.autograd.grad(divergence(rule, z, ids, logprobs).sum(), z)
        return (slope * (sampled - pi)).sum(1)
    mu_k = logprobs.exp().masked_fill(~used, 0)
    pi_k = pi.gather(1, ids.clamp(min=0)).masked_fill(~used, 0)
    mu_tail, pi_tail = 1 - mu_k.sum(1), 1 - pi_k.sum(1)
    square = pi_tail**2 / (1 if rule.tail == "aggregated" else logits.shape[1] - used.sum(1))
    if rule.proximity == "kl":
        tail = square * (mu_tail - pi_tail) / pi_tail
        return pi_k[:, 0] - mu_k[:, 0] + (pi_k * (mu_k - pi_k)).sum(1) + tail
    center = pi_k[:, 0] - (pi_k**2).sum(1) - square
    step = sampled.gather(1, ids.clamp(min=0)) * used - pi_k - center[:, None]
    tail = torch.sign(mu_tail - pi_tail) * (-square - center * pi_tail)
    return -((torch.sign(mu_k - pi_k) * pi_k * step).sum(1) + tail) / 2


def keep_mask(rule: MaskRule, logits, ids, logprobs, advantages):
    """[N] bool from logits [N, V] at the temperature; float64."""
    logits, logprobs, ids = logits.detach().double(), logprobs.double(), ids.long()
    ratio = (torch.log_softmax(logits, -1).gather(1, ids[:, :1])[:, 0] - logprobs[:, 0]).exp()
    if rule.proximity == "none":
        return torch.ones_like(ratio, dtype=torch.bool)
    if rule.proximity == "ratio":
        outside = (ratio > 1 + rule.clip_high) | (ratio < 1 - rule.clip_low)
    else:
        threshold = torch.where(advantages < 0, rule.delta_negative or rule.delta, rule.delta)
        outside = divergence(rule, logits, ids, logprobs) > threshold
    if rule.direction == "any":
        return ~(outside & (advantages != 0))
    direction = ratio - 1 if rule.direction == "ratio" else predicted_change(rule, logits, ids, logprobs)
    return ~(outside & (advantages * direction > 0))


def token_losses(rule: MaskRule, logits, ids, logprobs, advantages):
    """[N]: -M r A with the ratio live."""
    keep = keep_mask(rule, logits, ids, logprobs, advantages)
    log_pi = torch.log_softmax(logits.float(), -1).gather(1, ids[:, :1].long())[:, 0]
    return torch.where(keep, -(log_pi - logprobs[:, 0]).exp() * advantages, 0)
