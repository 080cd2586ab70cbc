"""The training step in plain torch, from the papers' formulas: advantages, weights, masks, losses. Shares no code with
Augur; float64 unless asked otherwise."""

import math

import numpy as np
import torch

from rule_truth import Batch


def advantages(kind: str, rewards: list[float], groups: list[int], lengths: list[int]) -> list[float]:
    out = []
    for reward, group in zip(rewards, groups, strict=True):
        mates = torch.tensor([r for r, g in zip(rewards, groups, strict=True) if g == group], dtype=torch.float64)
        if len(mates) == 1:
            out.append(reward)
        elif kind == "grpo":
            out.append(float((reward - mates.mean()) / (mates.std() + 1e-6)))
        elif kind == "rloo":
            out.append(reward - float((mates.sum() - reward) / (len(mates) - 1)))
        else:
            out.append(reward - float(mates.mean()))
    if kind != "reinforce_pp":
        return out
    tokens = torch.cat([torch.full((n,), a, dtype=torch.float64) for a, n in zip(out, lengths, strict=True)])
    return [float((a - tokens.mean()) / torch.sqrt(tokens.var() + 1e-8)) for a in out]


def token_weights(kind: str, lengths: list[int], horizon: int) -> list[float]:
    """The weight of each token of a sequence, by sequence."""
    total, count = sum(lengths), len(lengths)
    rules = {
        "token-mean": lambda n: 1 / total,
        "token-sum": lambda n: 1,
        "seq-mean-token-mean": lambda n: 1 / (count * n),
        "seq-mean-token-sum": lambda n: 1 / count,
        "seq-mean-token-sum-norm": lambda n: 1 / (count * horizon),
    }
    return [rules[kind](n) for n in lengths]


def divergence_and_change(rule, log_pi, ids, log_mu, advantage):
    """D over the support with one tail bucket, and its change along the gradient of log pi(sampled), for one token."""
    used = [c for c in range(len(ids)) if ids[c] >= 0]
    if rule.support == "binary":
        used = used[:1]
    mu, pi = [math.exp(log_mu[c]) for c in used], [math.exp(log_pi[ids[c]]) for c in used]
    mu_tail = max(0.0, 1 - sum(mu))
    rest = [math.exp(log_pi[v]) for v in range(len(log_pi)) if v not in {ids[c] for c in used}]
    pi_tail = sum(rest)
    square = {"aggregated": pi_tail**2, "uniform": pi_tail**2 / max(1, len(rest)), "exact": sum(p * p for p in rest)}
    s = square[rule.tail]
    c = pi[0] - sum(p * p for p in pi) - s
    rates = [(1.0 if i == 0 else 0.0) - p - c for i, p in enumerate(pi)]  # d log pi_i
    tail_rate = -s / pi_tail - c
    if rule.proximity == "tv":
        d = (sum(abs(m - p) for m, p in zip(mu, pi, strict=True)) + abs(mu_tail - pi_tail)) / 2
        sign = lambda x: (x > 0) - (x < 0)  # noqa: E731
        change = sum(sign(p - m) * p * r for m, p, r in zip(mu, pi, rates, strict=True)) / 2
        return d, change + sign(pi_tail - mu_tail) * pi_tail * tail_rate / 2
    if rule.proximity == "reverse_kl":
        logs = [math.log(p / m) for m, p in zip(mu, pi, strict=True)]
        tail_log = math.log(pi_tail / max(mu_tail, 2**-24))
        d = sum(p * x for p, x in zip(pi, logs, strict=True)) + pi_tail * tail_log
        change = sum(p * r * x for p, r, x in zip(pi, rates, logs, strict=True))
        return max(d, 0.0), change + pi_tail * tail_rate * tail_log
    d = sum(m * math.log(m / p) for m, p in zip(mu, pi, strict=True)) + mu_tail * math.log(
        max(mu_tail, 1e-300) / pi_tail
    )
    return max(d, 0.0), -sum(m * r for m, r in zip(mu, rates, strict=True)) - mu_tail * tail_rate


def keeps(rule, log_pi, ids, log_mu, advantage) -> bool:
    ratio = math.exp(log_pi[ids[0]] - log_mu[0])
    if rule.proximity == "none" or advantage == 0:
        return True
    if rule.proximity == "ratio":
        outside = ratio > 1 + rule.clip_high or ratio < 1 - rule.clip_low
        change = 0.0
    else:
        d, change = divergence_and_change(rule, log_pi, ids, log_mu, advantage)
        outside = d > rule.delta
    direction = {"predicted": change, "ratio": ratio - 1, "any": advantage}[rule.direction]
    if rule.dual_clip and advantage < 0 and ratio > rule.dual_clip:
        return False
    return not (outside and advantage * direction > 0)


def minibatch_loss(samples, logits_of, options):
    """The loss as a differentiable number. `samples` are the dump's lines, `logits_of(sample)` gives [response, V]."""
    lengths = [len(s["response"]) for s in samples]
    weights = token_weights(options["aggregation"], lengths, options["horizon"])
    total = 0
    masked = 0
    for sample, weight in zip(samples, weights, strict=True):
        log_pi = torch.log_softmax(logits_of(sample) / options["temperature"], -1)
        columns, advantage = sample["columns"], sample["advantage"]
        ids = torch.tensor(sample["support_ids"]).view(-1, columns)
        recorded = [math.nan if x is None else x for x in sample["support_logprobs"]]
        log_mu = torch.tensor(recorded, dtype=log_pi.dtype).view(-1, columns)
        chosen = log_pi.gather(1, ids[:, :1].long()).squeeze(1)
        ratio = (chosen - log_mu[:, 0]).exp()
        loss, importance = options["loss"], 1
        if sample["importance"]:  # tis with a recomputed anchor
            away = log_mu[:, 0] - torch.tensor(sample["sampled_logprobs"], dtype=log_pi.dtype)
            importance = away.exp().clamp(max=options["tis_cap"])
            torch.testing.assert_close(torch.tensor(sample["importance"]), importance.float())
            loss = "masked"
        if loss == "gspo":
            s = (chosen - log_mu[:, 0]).mean().exp()
            live = s.detach() * (chosen - chosen.detach()).exp()  # gradient s * grad log pi_t, value s
            clipped = s > 1 + options["clip_high"] if advantage > 0 else s < 1 - options["clip_low"]
            terms = torch.zeros_like(live) if clipped else -live * advantage
        elif options.get("truth"):
            logprobs = torch.nan_to_num(log_mu, nan=-torch.inf).double().numpy()
            policy = log_pi.detach().double().gather(1, ids.long().clamp(min=0)).numpy()
            zeros, signs = np.zeros(len(ids)), np.full(len(ids), advantage)
            batch = Batch(logprobs, policy, signs, log_pi.shape[1], zeros, zeros, [len(ids)])
            answer = options["truth"](batch)
            masked += int((~answer.keep).sum())
            terms = -torch.from_numpy(answer.coefficient) * advantage * (1 + chosen - chosen.detach())
            terms = terms + options["penalty"](chosen - log_mu[:, 0])
        elif loss in ("cispo", "tis"):
            cap = 1 + options["clip_high"] if loss == "cispo" else options["tis_cap"]
            factor = ratio.detach().clamp(max=cap)
            terms = -factor * advantage * (1 + chosen - chosen.detach())  # REINFORCE with a fixed factor
        else:
            rows = log_pi.detach().double().tolist()
            keep = torch.tensor(
                [
                    keeps(options["rule"], rows[t], ids[t].tolist(), log_mu[t].double().tolist(), advantage)
                    for t in range(len(rows))
                ]
            )
            masked += int((~keep).sum())
            terms = torch.where(keep, -ratio * advantage, 0) * importance
        if options["entropy_bonus"]:
            terms = terms + options["entropy_bonus"] * (log_pi.exp() * log_pi).sum(1)
        if options["kl_coef"]:
            x = torch.tensor(sample["reference"], dtype=log_pi.dtype) - chosen
            terms = terms + options["kl_coef"] * {"k1": -x, "k2": x * x / 2, "k3": x.exp() - x - 1}[options["kl"]]
        total = total + (weight * terms).sum()
    return total, masked
