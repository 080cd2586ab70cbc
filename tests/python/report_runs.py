"""Run directories as the trainer leaves them, made up: metrics that rise, tokens with softmax distributions."""

import json
import math
from pathlib import Path

import numpy as np

DELTA = 0.15
RULE = (
    f"proximity=kl direction=predicted support=topk tail=aggregated action=drop delta={DELTA} delta_negative=0 "
    "clip_low=0.2 clip_high=0.28 ratio_cap=0 restore_strength=1"
)
WORDS = ["\n", "<think>", " the", " sum", " of", " 12", " and", " 7", " is", " 19", ".", " So", " answer", ":", "</s>"]
VOCAB = WORDS + [f" {i}" for i in range(100, 225)]


def config(model: str = "models/tiny", steps: int = 60, seed: int = 0) -> str:
    return (
        f"run:\n  dir: runs/made-up\n  seed: {seed}\nmodel:\n  path: {model}\n  precision: fp8_rollout\n"
        f"mask:\n  proximity: kl\n  direction: predicted\n  support: topk\n  tail: aggregated\n  action: drop\n"
        f"  delta: {DELTA}\n  delta_negative: 0\n  clip_low: 0.2\n  clip_high: 0.28\n"
        f"rollout:\n  group: 8\n  stop: [a, b]\ntrain:\n  steps: {steps}\n"
    )


def metrics(steps: int, rng: np.random.Generator, every: int = 10) -> list[dict]:
    lines = []
    for step in range(1, steps + 1):
        done = 1 - math.exp(-step / 25)
        data = {
            "critic/score/mean": 0.3 + 0.4 * done + 0.03 * rng.normal(),
            "response_length/mean": 40 + 12 * done + rng.normal(),
            "actor/entropy": 1.2 - 0.7 * done + 0.02 * rng.normal(),
            "actor/pg_loss": 0.02 * rng.normal(),
            "actor/grad_norm": 0.5 + 0.1 * abs(rng.normal()),
            "actor/ppo_kl": 0.002 + 0.0005 * rng.normal(),
            "mask/outside": 0.03 + 0.01 * done + 0.002 * rng.normal(),
            "mask/masked": 0.015 + 0.002 * rng.normal(),
            "mask/disagree": 0.002 + 0.0004 * rng.normal(),
            "mask/divergence": 0.02 + 0.01 * done + 0.001 * rng.normal(),
            "mismatch/logp_diff_mean": 0.03 + 0.004 * rng.normal(),
            "timing_s/step": 1.4 + 0.05 * rng.normal(),
            "perf/throughput": 9000 + 200 * rng.normal(),
        }
        if step == 1 or step % every == 0:
            data["val-core/sort/acc/mean@16"] = 0.31 + 0.3 * done + 0.005 * rng.normal()
        lines.append({"step": step, "data": data})
    return lines


def points(steps: int, rng: np.random.Generator) -> list[dict]:
    lines = []
    for step in range(1, steps + 1):
        rows = []
        for _ in range(40):
            divergence = float(np.exp(rng.normal(-4, 1.6)))
            ratio = float(np.exp(0.4 * rng.normal() * math.sqrt(divergence)))
            direction = float(0.3 * (ratio - 1) - 0.3 * divergence + 0.05 * rng.normal())
            advantage = float(rng.choice([-1.2, 0.8]))
            outside = divergence > DELTA
            outward = advantage * direction > 0
            other = advantage * (ratio - 1) > 0
            flags = int(outside) + 2 * (outside and outward) + 4 * (outside and outward != other)
            rows.append([ratio, divergence, direction, advantage, int(flags)])
        lines.append({"step": step, "tokens": 4000, "outside": 120, "points": rows})
    return lines


def token(rng: np.random.Generator, word: int, advantage: float, drift: float, columns: int = 21) -> dict:
    """One token whose every figure follows from two softmax distributions, as in docs/masks.md."""
    logits = 2.0 * rng.normal(size=len(VOCAB))
    logits[word] += 4
    moved = logits + drift * rng.normal(size=len(VOCAB))
    mu, pi = (np.exp(z) / np.exp(z).sum() for z in (logits, moved))
    ids = [word] + [int(i) for i in np.argsort(-mu) if i != word][: columns - 1]
    m, p = mu[ids], pi[ids]
    m_tail, p_tail = 1 - m.sum(), 1 - p.sum()
    divergence = float((m * np.log(m / p)).sum() + m_tail * np.log(m_tail / p_tail))
    ratio = float(p[0] / m[0])
    local = float(p[0] - m[0])
    everything = float((p * (m - p)).sum() + p_tail * (m_tail - p_tail))
    outside, outward = divergence > DELTA, advantage * (local + everything) > 0
    return {
        "id": word,
        "text": VOCAB[word],
        "ratio": ratio,
        "divergence": divergence,
        "direction": local + everything,
        "local": local,
        "global": everything,
        "advantage": advantage,
        "keep": not (outside and outward),
        "outside": bool(outside),
        "disagree": bool(outside and outward != (advantage * (ratio - 1) > 0)),
        "missing": False,
        "support": [[i, VOCAB[i], float(a), float(b)] for i, a, b in zip(ids, m, p, strict=True)],
        "mu_tail": float(m_tail),
        "pi_tail": float(p_tail),
    }


def response(rng: np.random.Generator, step: int, length: int = 40) -> dict:
    advantage = float(rng.choice([-0.9, 1.1]))
    tokens = [token(rng, int(rng.integers(len(WORDS))), advantage, 0.25 + 0.55 * rng.random()) for _ in range(length)]
    return {
        "step": step,
        "data_source": "sort",
        "prompt": f"Sort these numbers: {' '.join(str(rng.integers(256)) for _ in range(10))}",
        "answer": "1 2 3",
        "reward": float(advantage > 0),
        "advantage": advantage,
        "finish": "eos",
        "rule": RULE,
        "delta": DELTA,
        "tokens": tokens,
    }


def write_lines(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_run(run: Path, steps: int = 60, seed: int = 0, responses: int = 12, model: str = "models/tiny") -> Path:
    rng = np.random.default_rng(seed)
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(config(model, steps, seed))
    write_lines(run / "metrics.jsonl", metrics(steps, rng))
    write_lines(run / "points.jsonl", points(steps, rng))
    write_lines(run / "tokens.jsonl", [response(rng, 10 * (1 + i // 4)) for i in range(responses)])
    (run / "summary.json").write_text(json.dumps({"before": 0.31, "after": 0.62, "train_seconds": 171.5, "seed": seed}))
    return run
