"""Makes mask_cases.jsonl: tokens with what every preset decides about them, computed here in float64.

    .venv/bin/python tests/data/make_mask_cases.py > tests/data/mask_cases.jsonl

Nothing of Augur is used. A divergence D is a function of the probabilities of the atoms, its change the derivative
along the step of the logits v_i = 1[i = sampled] - pi_i, from dpi_i = pi_i (v_i - c) with c = sum_j pi_j v_j; with the
exact tail it is held here to a finite difference over the whole softmax. One case a line:

    vocab, ids, behaviour, policy  the support: column 0 is the sampled token, the rest in falling order of behaviour
    tail_square                    sum of squares of the policy outside the support
    expect.PRESET                  ratio, divergence, direction, and keep; keep is null within a rounding of a boundary
"""

import json
import math
import random

import numpy as np

DELTA, TIGHT_DELTA = 0.15, 0.05
LEAST_PI_TAIL = float(np.finfo(np.float32).tiny)  # of KL
LEAST_MU_TAIL = 2.0**-24  # of reverse KL
NEAR = 2e-5  # of a boundary, relative: float32 may decide otherwise


class Token:
    """Log-probs over the atoms of a support, with the rest gathered in a tail."""

    def __init__(self, behaviour, policy, vocab, tail_square, binary=False):
        self.log_mu, self.log_pi = (x[:1] if binary else x for x in (behaviour, policy))
        self.mu, self.pi = [math.exp(x) for x in self.log_mu], [math.exp(x) for x in self.log_pi]
        self.unseen = vocab - len(self.mu)
        has_tail = self.unseen > 0
        self.mu_tail = max(0.0, 1 - math.fsum(self.mu)) if has_tail else 0.0
        self.pi_tail = max(0.0, 1 - math.fsum(self.pi)) if has_tail else 0.0
        folded = math.fsum(math.exp(x) ** 2 for x in policy[1:]) if binary else 0.0
        self.exact_square = tail_square + folded if has_tail else 0.0

    def square(self, tail):
        """The tail's share of the sum of squares, as the model of the tail has it."""
        if tail == "exact":
            return self.exact_square
        if self.unseen <= 0:
            return 0.0
        return self.pi_tail**2 if tail == "aggregated" else self.pi_tail**2 / self.unseen

    def steps(self, tail):
        """The change of every atom's probability, and of the tail's."""
        square = self.square(tail)
        c = math.fsum([self.pi[0], *(-p * p for p in self.pi), -square])
        head = [p * ((i == 0) - p - c) for i, p in enumerate(self.pi)]
        return head, -square - c * self.pi_tail


def sign(x):
    return (x > 0) - (x < 0)


def kl(t):
    tail = t.mu_tail * math.log(t.mu_tail / max(t.pi_tail, LEAST_PI_TAIL)) if t.mu_tail > 0 else 0.0
    return max(0.0, math.fsum([*(m * (a - b) for m, a, b in zip(t.mu, t.log_mu, t.log_pi, strict=True)), tail]))


def kl_change(t, tail):
    """-sum_i mu_i dpi_i / pi_i = c - sum_i mu_i v_i, as the masses of mu are one."""
    square = t.square(tail)
    tail_v = -square / t.pi_tail if t.pi_tail > 0 else 0.0
    c = [t.pi[0], *(-p * p for p in t.pi), t.pi_tail * tail_v]
    return math.fsum([*c, -t.mu[0], *(m * p for m, p in zip(t.mu, t.pi, strict=True)), -t.mu_tail * tail_v])


def tv(t):
    return math.fsum([*(abs(m - p) for m, p in zip(t.mu, t.pi, strict=True)), abs(t.mu_tail - t.pi_tail)]) / 2


def tv_change(t, tail):
    head, rest = t.steps(tail)
    return (
        -math.fsum(
            [*(sign(m - p) * d for m, p, d in zip(t.mu, t.pi, head, strict=True)), sign(t.mu_tail - t.pi_tail) * rest]
        )
        / 2
    )


def reverse_kl(t):
    tail = t.pi_tail * math.log(t.pi_tail / max(t.mu_tail, LEAST_MU_TAIL)) if t.pi_tail > 0 else 0.0
    return max(0.0, math.fsum([*(p * (b - a) for p, a, b in zip(t.pi, t.log_mu, t.log_pi, strict=True)), tail]))


def reverse_kl_change(t, tail):
    head, rest = t.steps(tail)
    log_tail = math.log(t.pi_tail / max(t.mu_tail, LEAST_MU_TAIL)) if t.pi_tail > 0 else 0.0
    return math.fsum([*(d * (b - a) for d, a, b in zip(head, t.log_mu, t.log_pi, strict=True)), rest * log_tail])


DIVERGENCES = {"kl": (kl, kl_change), "tv": (tv, tv_change), "reverse-kl": (reverse_kl, reverse_kl_change)}


def presets():
    """name -> (proximity, direction, binary support, tail, delta)"""
    rules = {"none": (None, "ratio", False, None, 0), "clip": ("ratio", "ratio", False, None, 0)}
    rules["clip-dual"] = ("dual", "ratio", False, None, 0)
    rules["dppo-binary-kl"] = ("kl", "ratio", True, None, TIGHT_DELTA)
    rules["dppo-binary-tv"] = ("tv", "ratio", True, None, DELTA)
    for name in DIVERGENCES:
        rules[f"dppo-topk-{name}"] = (name, "ratio", False, None, DELTA)
        for tail in ("aggregated", "uniform", "exact"):
            rules[f"predictive-{name}-{tail}"] = (name, "predicted", False, tail, DELTA)
    rules["predictive-kl-tight"] = ("kl", "predicted", False, "aggregated", TIGHT_DELTA)
    return rules


def decide(case, rule):
    proximity, direction, binary, tail, delta = rule
    token = Token(case["behaviour"], case["policy"], case["vocab"], case["tail_square"], binary)
    ratio = math.exp(min(20.0, max(-20.0, case["policy"][0] - case["behaviour"][0])))
    advantage = case["advantage"]
    away = ratio - 1
    distance, bounds = 0.0, []
    if proximity in ("ratio", "dual"):
        distance, bounds = abs(away), [(away, 0.28), (-away, 0.2)]
    elif proximity:
        distance = DIVERGENCES[proximity][0](token)
        bounds = [(distance, delta)]
    outside = any(x > bound for x, bound in bounds)
    heading = DIVERGENCES[proximity][1](token, tail) if direction == "predicted" else away
    keep = not (outside and advantage * heading > 0)
    unsure = any(abs(x - bound) <= NEAR * (1 + bound) for x, bound in bounds)
    unsure = unsure or (outside and abs(heading) <= NEAR * (1 + ratio))
    if proximity == "dual" and advantage < 0:
        keep = keep and not ratio > 3
        unsure = unsure or abs(ratio - 3) <= NEAR * 4
    settled = advantage == 0 or proximity is None or not unsure
    return {"ratio": ratio, "divergence": distance, "direction": heading, "keep": keep if settled else None}


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def make_case(rng, vocab, top, spread, drift, rank, advantage):
    logits = spread * rng.standard_normal(vocab)
    behaviour = log_softmax(logits)
    policy = log_softmax(logits + drift * rng.standard_normal(vocab))
    order = np.argsort(-behaviour, kind="stable")
    if rank is None:  # the likely token whose probability grew most
        sampled = int(max(order[:top], key=lambda i: policy[i] - behaviour[i]))
    else:
        sampled = int(order[min(rank, vocab - 1)])
    ids = [sampled, *(int(i) for i in order[:top] if i != sampled)]
    inside = np.zeros(vocab, bool)
    inside[ids] = True
    case = {
        "vocab": vocab,
        "ids": ids,
        "behaviour": [float(np.float32(behaviour[i])) for i in ids],
        "policy": [float(np.float32(policy[i])) for i in ids],
        "tail_square": float(np.float32(np.sum(np.exp(2 * policy[~inside])))),
        "advantage": advantage,
    }
    return case, policy, inside


def check_changes(case, policy, inside):
    """The exact change against a finite difference over the whole softmax."""
    step, sampled = 1e-5, case["ids"][0]
    direction = -np.exp(policy)
    direction[sampled] += 1
    moved = []
    for way in (step, -step):
        after = log_softmax(policy + way * direction)
        moved.append(Token(case["behaviour"], [float(after[i]) for i in case["ids"]], case["vocab"], 0.0))
    here = Token(
        case["behaviour"],
        [float(policy[i]) for i in case["ids"]],
        case["vocab"],
        float(np.sum(np.exp(2 * policy[~inside]))),
    )
    for value, change in DIVERGENCES.values():
        if value is reverse_kl and here.mu_tail < 2 * LEAST_MU_TAIL:
            continue  # the floor is not a smooth function
        measured, computed = (value(moved[0]) - value(moved[1])) / (2 * step), change(here, "exact")
        assert abs(measured - computed) <= 1e-6 + 1e-4 * abs(computed), (value.__name__, measured, computed)


def main():
    rules = presets()
    draw = random.Random(20260101)
    rng = np.random.default_rng(20260101)
    advantages = [1.0, 1.0, -1.0, -1.0, 0.37, -2.5, 0.0]
    shapes = [(8, 8), (21, 20), (22, 20), (60, 20), (500, 20), (2000, 20), (151936, 20)]
    for i in range(126):
        vocab, top = shapes[i % len(shapes)]
        spread = draw.choice([0.5, 1.0, 2.0, 4.0])
        drift = draw.choice([0.0, 0.1, 0.3, 0.6, 0.6, 1.0, 1.0, 1.5, 2.5])
        rank = draw.choice([0, 0, 0, 1, 3, 10, top + 2, None, None])
        case, policy, inside = make_case(rng, vocab, top, spread, drift, rank, draw.choice(advantages))
        if drift > 0:
            check_changes(case, policy, inside)
        case["expect"] = {name: decide(case, rule) for name, rule in rules.items()}
        print(json.dumps(case, separators=(",", ":")))


if __name__ == "__main__":
    main()
