"""Every rule in numpy and float64, written from the formulas of docs/rules.md. Nothing of Augur is used.

A batch is log_mu and log_pi [T, M] over the support (column 0 the sampled token, -inf in unused columns of log_mu),
advantages A [T], the vocabulary's size, the sums of pi^2 and pi^3 outside the support [T] and the responses' lengths.
"""

from typing import NamedTuple

import numpy as np


class Tokens(NamedTuple):
    """The atoms of a batch, with what is outside the support in a tail."""

    mu: np.ndarray  # [T, M], 0 in unused columns, as the next
    pi: np.ndarray
    log_ratio: np.ndarray  # [T, M], 0 in unused columns
    mu_tail: np.ndarray  # [T], as all below
    pi_tail: np.ndarray
    square: np.ndarray  # of pi in the tail, exactly
    unseen: np.ndarray  # tokens in the tail


def tokens_of(log_mu, log_pi, vocab, tail_square):
    used = np.isfinite(log_mu)
    mu = np.where(used, np.exp(log_mu), 0.0)
    pi = np.where(used, np.exp(np.where(used, log_pi, 0.0)), 0.0)
    log_ratio = np.where(used, np.where(used, log_pi, 0.0) - np.where(used, log_mu, 0.0), 0.0)
    unseen = vocab - used.sum(1)
    left = [np.where(unseen > 0, np.maximum(1 - x.sum(1), 0.0), 0.0) for x in (mu, pi)]
    return Tokens(mu, pi, log_ratio, *left, np.where(unseen > 0, tail_square, 0.0), unseen)


def kl(t):
    """sum mu log(mu / pi)"""
    floored = np.maximum(t.pi_tail, np.finfo(np.float32).tiny)
    tail = np.where(t.mu_tail > 0, t.mu_tail * np.log(np.where(t.mu_tail > 0, t.mu_tail, 1) / floored), 0)
    return np.maximum((t.mu * -t.log_ratio).sum(1) + tail, 0)


class Answer(NamedTuple):
    """One entry a token."""

    divergence: np.ndarray
    keep: np.ndarray
    coefficient: np.ndarray
    # How far the token is from the rule's nearest boundary: near 0, float32 may decide otherwise.
    bound: np.ndarray


class Batch(NamedTuple):
    log_mu: np.ndarray
    log_pi: np.ndarray
    advantages: np.ndarray
    vocab: int
    square: np.ndarray
    cube: np.ndarray
    lengths: list

    @property
    def present(self):
        """Tokens with a recorded support."""
        return np.isfinite(self.log_mu[:, 0])

    @property
    def ratio(self):
        return np.exp(self.log_ratio)

    @property
    def log_ratio(self):
        away = self.log_pi[:, 0] - np.where(self.present, self.log_mu[:, 0], 0)
        return np.clip(np.where(self.present, away, 0), -20, 20)

    @property
    def mu(self):
        return np.where(self.present, np.exp(self.log_mu[:, 0]), 1)

    @property
    def moved(self):
        """|pi - mu| of the sampled token."""
        return np.where(self.present, np.abs(np.exp(self.log_pi[:, 0]) - np.exp(self.log_mu[:, 0])), 0)

    def responses(self):
        """The indices of each response's tokens that have a support."""
        ends = np.cumsum(self.lengths)
        for begin, end in zip(ends - self.lengths, ends, strict=True):
            tokens = np.arange(begin, end)[self.present[begin:end]]
            if len(tokens):
                yield tokens


def kept_where(dropped, advantages):
    """A = 0 keeps, whatever the rule."""
    return ~(dropped & (advantages != 0))


def answer(b, divergence, dropped, coefficient, bound):
    keep = kept_where(dropped, b.advantages) & b.present
    return Answer(divergence, keep, np.where(keep, coefficient, 0), bound)


def everything(coefficient):
    """No token is masked: the rule is its coefficient, a function of (ratio, mu, A)."""

    def rule(b):
        zeros = np.zeros(len(b.advantages))
        return answer(b, zeros, zeros > 0, coefficient(b.ratio, b.mu, b.advantages), zeros + 1)

    return rule


def sigmoid(x):
    return np.where(x > 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def sapo(ratio, mu, advantages):
    """The derivative of (4 / tau) sigmoid(tau (r - 1)) by log pi."""
    x = np.where(advantages > 0, 1.0, 1.05) * (ratio - 1)
    return 4 * sigmoid(x) * sigmoid(-x) * ratio


def distance(b, low, high):
    """From a boundary of the ratio, relative."""
    return np.minimum(np.abs(b.ratio - low), np.abs(b.ratio - high)) / (1 + b.ratio)


def band(low, high):
    """Without direction: r outside [low, high] is dropped."""

    def rule(b):
        return answer(b, np.abs(b.ratio - 1), (b.ratio < low) | (b.ratio > high), b.ratio, distance(b, low, high))

    return rule


def clip(bounds):
    """PPO's, with bounds that depend on mu."""

    def rule(b):
        low, high = bounds(b.mu)
        dropped = ((b.advantages > 0) & (b.ratio > high)) | ((b.advantages < 0) & (b.ratio < low))
        return answer(b, np.abs(b.ratio - 1), dropped, b.ratio, distance(b, low, high))

    return rule


def ripo(mu):
    radius = np.sqrt(0.05 / mu)
    return np.maximum(1 - radius, 0.5), np.minimum(1 + radius, 10)


def dcpo(mu):
    return (1 + np.sqrt(np.maximum(1 - 4 * 0.16 / mu, 0))) / 2, np.minimum((1 + np.sqrt(1 + 4 * 0.2 / mu)) / 2, 10)


def dppo_any(b):
    d = kl(tokens_of(b.log_mu, b.log_pi, b.vocab, b.square))
    return answer(b, d, d > 0.15, b.ratio, np.abs(d - 0.15))


def ipo(b):
    return answer(b, b.moved, b.moved > 0.1, b.ratio, np.abs(b.moved - 0.1))


def second_order(b):
    """D + s D' + s^2 D'' / 2 > delta with s = eta A r, from the derivatives of -sum mu log pi along z + s v. With the
    tail's probabilities q: log q's derivatives are E_q[v] - E_pi[v] and Var_q(v) - Var_pi(v)."""
    t = tokens_of(b.log_mu, b.log_pi, b.vocab, b.square)
    y = t.pi[:, 0]
    cube = np.where(t.unseen > 0, b.cube, 0.0)
    mean = y - (t.pi**2).sum(1) - t.square
    second = y * (1 - 2 * y) + (t.pi**3).sum(1) + cube
    variance = second - mean**2
    mass = np.where(t.pi_tail > 0, t.pi_tail, 1)
    v = -t.pi.copy()
    v[:, 0] += 1
    first = -(t.mu * (v - mean[:, None])).sum(1) - np.where(t.pi_tail > 0, t.mu_tail * (-t.square / mass - mean), 0)
    tail = np.where(t.pi_tail > 0, t.mu_tail * (cube / mass - (t.square / mass) ** 2), 0)
    d = kl(t)
    step = 0.1 * b.advantages * b.ratio
    after = d + step * first + step**2 / 2 * (variance - tail)
    return answer(b, d, after > 0.15, b.ratio, np.abs(after - 0.15) / (1 + np.abs(step) ** 2))


def by_response(f):
    """f answers for one response: (log_ratio, ratio, moved, A) -> divergence, dropped, coefficient, bound."""

    def rule(b):
        out = [np.zeros(len(b.advantages)) for _ in range(4)]
        for tokens in b.responses():
            parts = f(b.log_ratio[tokens], b.ratio[tokens], b.moved[tokens], b.advantages[tokens])
            for total, part in zip(out, parts, strict=True):
                total[tokens] = part
        divergence, dropped, coefficient, bound = out
        return answer(b, divergence, dropped > 0, coefficient, bound)

    return rule


def gspo(log_ratio, ratio, moved, advantages):
    s = np.exp(log_ratio.mean())
    dropped = ((advantages > 0) & (s > 1.0004)) | ((advantages < 0) & (s < 0.9997))
    return abs(s - 1), dropped, s, min(abs(s - 1.0004), abs(s - 0.9997))


def gmpo(log_ratio, ratio, moved, advantages):
    held = np.where(advantages > 0, np.minimum(log_ratio, 0.4), log_ratio)
    held = np.where(advantages < 0, np.maximum(log_ratio, -0.4), held)
    return np.abs(log_ratio), held != log_ratio, np.exp(held.mean()), np.abs(np.abs(log_ratio) - 0.4)


def trm(log_ratio, ratio, moved, advantages):
    largest, mean = (log_ratio**2 / 2).max(), (ratio - 1 - log_ratio).mean()
    return largest, np.full_like(ratio, largest > 2.5 or mean > 0.01), ratio, min(abs(largest - 2.5), abs(mean - 0.01))


def opsm(log_ratio, ratio, moved, advantages):
    kl = -log_ratio.mean()
    return kl, (advantages < 0) & (kl > 1e-4), ratio, abs(kl - 1e-4)


def mis(mean, low, high):
    def rule(log_ratio, ratio, moved, advantages):
        whole = np.exp(np.clip(log_ratio.mean() if mean else log_ratio.sum(), -20, 20))
        dropped = np.full_like(ratio, whole < low or whole > high)
        return abs(whole - 1), dropped, ratio, min(abs(whole - low), abs(whole - high)) / (1 + whole)

    return rule


def vaco(log_ratio, ratio, moved, advantages):
    away = np.abs(ratio - 1).mean()
    return away, (away > 0.15) & (advantages * (ratio - 1) > 0), ratio, abs(away - 0.15)


def vespo(log_ratio, ratio, moved, advantages):
    """e^lambda W^k e^(-lambda W)"""
    log_w = np.clip(log_ratio.sum(), np.log(1e-8), 20)
    k, lam = np.where(advantages >= 0, 2, 3), np.where(advantages >= 0, 3, 2)
    weight = np.exp(lam + k * log_w - lam * np.exp(log_w))
    return abs(np.exp(log_w) - 1), np.zeros_like(ratio), weight, np.ones_like(ratio)


def cppo(log_ratio, ratio, moved, advantages):
    weights = np.linspace(1, 0.8, len(ratio)) if len(ratio) > 1 else np.ones(1)
    z = weights * moved
    budget = np.clip(np.quantile(moved, 0.9), 0.02, 0.04)
    before = np.concatenate([[0], np.cumsum(weights)[:-1]]), np.concatenate([[0], np.cumsum(z)[:-1]])
    threshold = np.minimum(0.15, 0.15 + budget * before[0] - before[1])
    return z, (z > threshold) & (advantages * (ratio - 1) > 0), ratio, np.abs(z - threshold)


def m2po(b):
    """The outward tokens with the largest (log r)^2 go, until the mean over the others is below 0.04."""
    squared = b.log_ratio**2
    dropped = np.zeros(len(squared), bool)
    outward = [t for t in np.argsort(-squared, kind="stable") if b.present[t] and b.advantages[t] * b.log_ratio[t] > 0]
    for token in outward:
        left = b.present & ~dropped
        if left.sum() == 1 or squared[left].mean() < 0.04:
            break
        dropped[token] = True
    return answer(b, squared, dropped, b.ratio, np.ones(len(squared)))


TRUTH = {
    "cispo": everything(lambda ratio, mu, advantages: np.minimum(ratio, 1.28)),
    "cppo": by_response(cppo),
    "dcpo": clip(dcpo),
    "dppo-topk-kl-any": dppo_any,
    "drpo": everything(lambda ratio, mu, advantages: ratio * (1 - np.sign(advantages) * mu * (ratio - 1) / 12.5)),
    "gmpo": by_response(gmpo),
    "gspo": by_response(gspo),
    "icepop": band(0.5, 5),
    "ipo": ipo,
    "m2po": m2po,
    "mis-geometric": by_response(mis(True, 0.999, 1.001)),
    "mis-sequence": by_response(mis(False, 0.5, 2)),
    "mis-token": band(0.5, 2),
    "opsm": by_response(opsm),
    "predictive-kl-second-order": second_order,
    "r2vpo": everything(lambda ratio, mu, advantages: ratio),
    "ripo": clip(ripo),
    "sapo": everything(sapo),
    "spo": everything(lambda ratio, mu, advantages: ratio * (1 - np.sign(advantages) * (ratio - 1) / 12.5)),
    "tis": everything(lambda ratio, mu, advantages: np.minimum(ratio, 2)),
    "topr": everything(lambda ratio, mu, advantages: np.where(advantages < 0, np.minimum(ratio, 1), 1)),
    "trm": by_response(trm),
    "vaco": by_response(vaco),
    "vespo": by_response(vespo),
}

# Of log r as a tensor: what the loss of every token grows by.
PENALTIES = {"ipo": lambda x: 1e-3 * x**2, "r2vpo": lambda x: 0.1 * (x.exp() - 1) ** 2}
