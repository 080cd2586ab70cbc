"""Run directories as the trainer leaves them, made up: metrics that rise, tokens with softmax distributions."""

import json
import math
from pathlib import Path

import numpy as np

DELTA = 0.15
RULE = (
    f"proximity=kl direction=predicted support=topk tail=aggregated delta={DELTA} delta_negative=0 "
    "clip_low=0.2 clip_high=0.28 ratio_cap=0"
)
WORDS = ["\n", "<think>", " the", " sum", " of", " 12", " and", " 7", " is", " 19", ".", " So", " answer", ":", "</s>"]
VOCAB = WORDS + [f" {i}" for i in range(100, 225)]


def config(model: str = "models/tiny", steps: int = 60, seed: int = 0) -> str:
    return (
        f"run:\n  dir: runs/made-up\n  seed: {seed}\nmodel:\n  path: {model}\n  precision: fp8_rollout\n"
        f"mask:\n  proximity: kl\n  direction: predicted\n  support: topk\n  tail: aggregated\n"
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


CLIP = (
    "proximity=ratio direction=ratio support=topk tail=aggregated delta=0.15 delta_negative=0 "
    "clip_low=0.2 clip_high=0.28 dual_clip=0"
)


def under_clip(run: Path) -> Path:
    """The run as PPO's clip would have left it, as far as its texts say."""
    text = (run / "config.yaml").read_text().replace("proximity: kl", "proximity: ratio")
    (run / "config.yaml").write_text(text.replace("direction: predicted", "direction: ratio"))
    tokens = (run / "tokens.jsonl").read_text()
    (run / "tokens.jsonl").write_text(tokens.replace(RULE, CLIP))
    return run


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


def figure(mean: float, se: float = 0.01) -> dict:
    return {"mean": mean, "se": se, "seeds": 8}


def paired(mean: float, se: float = 0.01) -> dict:
    return figure(mean, se) | {"t": mean / se, "p": 0.012, "below": 6, "above": 2, "sign_p": 0.29}


def make_analysis(run: Path) -> dict:
    """analysis.json as augur analyze writes it, with figures like those of the study in the paper's section 4.2."""
    rng = np.random.default_rng(1)
    changes = np.sort(rng.normal(-0.004, 0.01, size=120))
    ecdf = [[float(x), (i + 1) / len(changes)] for i, x in enumerate(changes)]
    names = ["ratio", "predicted-aggregated", "predicted-uniform", "predicted-exact", "predicted-full"]
    criteria = []
    for i, name in enumerate(names):
        control = {"change": figure(0.0081), "minus_unmasked": paired(-0.0147), "minus_ratio": paired(-0.0001 * i)}
        criterion = {
            "name": name,
            "masked": figure(0.4),
            "prediction": {"sign_accuracy": figure(0.64 + 0.01 * i), "pooled": 0.64, "counted": 900, "zeros": 3},
            "control": control | {"surrogate_kept": figure(0.88)},
            "per_seed": [
                {"seed": s, "unsafe_keep": 0.342 + 0.01 * s, "ratio_unsafe_keep": 0.369 if s else None}
                for s in range(8)
            ],
        }
        if i:
            criterion["disagreements"] = {
                "count": figure(82, 5),
                "total": 656,
                "kept": 300,
                "ratio_kept": 356,
                "unsafe_keep": figure(0.342),
                "ratio_unsafe_keep": figure(0.369),
                "unsafe_keep_minus_ratio": paired(-0.027),
                "contraction": 0.651,
                "ratio_contraction": None,
                "ecdf": ecdf,
                "ratio_ecdf": [[x + 0.001, f] for x, f in ecdf],
            }
        criteria.append(criterion)
    points = [[0.1 * x, x, 2 * x, 0.0, 3.1 * x, 3.0 * x] for x in rng.normal(0, 0.004, size=60).tolist()]
    study = {
        "divergence": "kl",
        "delta": DELTA,
        "tokens": 40000,
        "outside_total": 1435,
        "outside": figure(179.4, 12),
        "unmasked_change": figure(0.0228),
        "criteria": criteria,
        "decomposition": {
            "tokens": 60,
            "median_size": {"own": 1.3e-3, "others": 3.6e-3, "momentum": 1.1e-2, "weight_decay": 1e-6},
            "momentum_cosine": figure(0.94),
            "oracle_sign_accuracy": 0.994,
            "own_effect_sign_accuracy": dict.fromkeys(names, 0.97),
            "points": points,
        },
    }
    empty = study | {"divergence": "tv", "outside_total": 0, "decomposition": None}
    analysis = {"kind": "analysis", "seeds": list(range(8)), "sequences": 1024, "measured_sequences": 256}
    analysis |= {"warmup": 4, "preceding": 3, "staleness": 0, "full_vocabulary": True, "divergences": [study, empty]}
    (run / "analysis.json").write_text(json.dumps(analysis))
    return analysis


def make_comparison(run: Path) -> dict:
    """compare.json as augur compare writes it."""

    def spread(mean: float) -> dict:
        return {"mean": mean, "low": 0.95 * mean, "high": 1.05 * mean, "by_seed": [mean] * 8}

    arms = []
    for i, name in enumerate(["grpo-clip-higher", "dppo-topk-kl", "predictive-aggregated", "predictive-exact"]):
        steps = list(range(0, 101, 10))
        height = [0.31 + (0.25 + 0.02 * i) * (1 - math.exp(-step / 30)) for step in steps]
        curve = {"x": steps, "mean": height, "low": [0.96 * h for h in height], "high": [1.04 * h for h in height]}
        difference = spread(0.02 * i) | {"p": 0.04, "below": 1, "above": 7, "sign_p": 0.07}
        arms.append(
            {
                "name": name,
                "rule": RULE,
                "final_accuracy": spread(height[-1]),
                "auc_accuracy": spread(0.5),
                "reward": spread(0.6),
                "response_length": spread(11.0),
                "ppo_kl": spread(0.002),
                "clip_fraction": spread(0.015),
                "outside": spread(0.03),
                "collapses": 0,
                "minus_baseline": {"final_accuracy": difference, "auc_accuracy": difference} if i else None,
                "curves": {"accuracy": curve, "reward": curve},
                "runs": [{"seed": s, "finished": s < 7 or i > 0, "note": "40 of 100 steps"} for s in range(8)],
            }
        )
    comparison = {"kind": "comparison", "level": 0.95, "steps": 100, "baseline": arms[0]["name"]}
    comparison |= {"seeds": list(range(8)), "arms": arms}
    (run / "compare.json").write_text(json.dumps(comparison))
    return comparison
