"""audit.every: outside tokens are scored again after the update, and nothing else changes."""

import json

import pytest

from conftest import ROOT, run_augur


def metrics(run, *overrides) -> list[dict]:
    small = [
        "train.steps=3",
        "train.warmup_steps=0",
        "rollout.prompts=8",
        "train.minibatch=4",
        "run.threads=2",
        "eval.files=[]",
        "mask.delta=0.005",
    ]
    recipe = ROOT / "recipes" / "quickstart.yaml"
    run_augur("train", recipe, f"model.path={ROOT}/models/tiny", f"run.dir={run}", *small, *overrides)
    return [json.loads(line)["data"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_times(data: dict) -> dict:
    return {k: v for k, v in data.items() if not k.startswith(("timing_s/", "perf/", "audit/"))}


def test_an_audit_logs_what_became_of_outside_tokens_and_leaves_training_alone(tmp_path):
    plain = metrics(tmp_path / "plain")
    audited = metrics(tmp_path / "audited", "audit.every=2")
    assert [without_times(a) for a in audited] == [without_times(p) for p in plain]
    assert not any(k.startswith("audit/") for k in audited[0])
    second = audited[1]
    assert second["audit/outside"] > 0 and second["timing_s/audit"] > 0
    assert 0 <= second["audit/unsafe_keep"] <= 1 and 0 <= second["audit/disagree"] <= 1
    assert second["audit/unsafe_keep"] + second["audit/contraction"] == pytest.approx(1)
    assert second["audit/delta_divergence"] != 0
