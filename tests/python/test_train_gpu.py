"""Training, audit and analysis on a GPU."""

import json

import pytest

from conftest import ROOT, run_augur

pytestmark = pytest.mark.gpu

RECIPE = ROOT / "recipes" / "quickstart.yaml"
SMALL = ["run.device=cuda", "rollout.prompts=8", "train.minibatch=4", "train.warmup_steps=0", "eval.files=[]"]


def train(run, *overrides) -> list[dict]:
    run_augur("train", RECIPE, f"model.path={ROOT}/models/tiny", f"run.dir={run}", *SMALL, *overrides)
    return [json.loads(line)["data"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("precision", ["bf16", "fp8_rollout", "fp32"])
def test_generation_that_overlaps_training_changes_nothing_but_the_age(tmp_path, precision):
    common = ["train.steps=6", f"model.precision={precision}", "checkpoint.every=0"]
    now = train(tmp_path / "now", *common)
    overlapped = train(tmp_path / "overlapped", *common, "rollout.staleness=1")
    assert [step["rollout/age"] for step in overlapped] == [0, 1, 1, 1, 1, 1]
    assert not any("timing_s/gen_wait" in step for step in now)
    assert all("timing_s/gen_wait" in step for step in overlapped)
    # The first batch is of the same weights, and so the same to the last token.
    for name in ("critic/score/mean", "response_length/mean", "critic/advantages/max"):
        assert overlapped[0][name] == now[0][name]


def test_two_runs_that_overlap_training_generate_the_same_tokens_while_weights_are_the_same(tmp_path):
    runs = [train(tmp_path / name, "train.steps=4", "rollout.staleness=3") for name in ("a", "b")]
    for one, other in zip(*runs, strict=True):  # every batch is of the first weights
        for name in ("critic/score/mean", "response_length/mean", "rollout/equal_groups"):
            assert one[name] == other[name]


def test_an_audit_on_a_gpu_scores_outside_tokens_again(tmp_path):
    last = train(tmp_path, "train.steps=2", "audit.every=2", "mask.delta=0.005")[-1]
    assert last["audit/outside"] > 0 and last["audit/delta_divergence"] != 0
    assert last["audit/unsafe_keep"] + last["audit/contraction"] <= 1 + 1e-9


def test_analysis_on_a_gpu(tmp_path):
    overrides = [f"model.path={ROOT}/models/tiny", f"run.dir={tmp_path}", *SMALL[:3], "mask.delta=0.002"]
    flags = ["--seeds", 2, "--sequences", 64, "--warmup", 2, "--preceding", 1, "--decompose", 12]
    run_augur("analyze", RECIPE, *overrides, *flags)
    kl = json.loads((tmp_path / "analysis.json").read_text())["divergences"][0]
    assert kl["outside_total"] > 20
    for criterion in kl["criteria"]:
        assert criterion["control"]["minus_unmasked"]["mean"] < 0


def test_attention_in_fp32_keeps_no_scores():
    """Those of a sequence of 4,096 tokens, 9 heads and 30 layers alone are 17 GiB, of which the backward kept four."""
    flags = ["--shape", "smollm2-135m", "--device", "cuda", "--dtype", "fp32", "--tokens", 4096, "--length", 4096]
    figures = json.loads(run_augur("bench", "train", *flags, "--rounds", 1, "--json").stdout)
    assert figures["peak_gib"] < 24


def test_fp32_weights_on_a_gpu_are_said_to_be_slow(tmp_path):
    data = ["--data", "task:sort:numbers=4:count=2", "--max-tokens", 4, "--device", "cuda"]
    done = run_augur("eval", ROOT / "models" / "tiny", *data, "--precision", "fp32")
    assert "many times slower than in bf16" in done.stderr and "set --precision bf16" in done.stderr
    assert "slower" not in run_augur("eval", ROOT / "models" / "tiny", *data, "--precision", "bf16").stderr
    done = run_augur(
        "train", RECIPE, f"model.path={ROOT}/models/tiny", f"run.dir={tmp_path}", *SMALL, "train.steps=1",
        "model.precision=fp32",
    )  # fmt: skip
    assert "set model.precision: bf16" in done.stderr
