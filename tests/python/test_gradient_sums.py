"""Gradients added up as the backward makes them: float32, bfloat16 rounded at random, float64; memory before a run."""

import pytest
import torch
from safetensors.torch import load_file

from conftest import run_augur
from train_runs import make_policy, read_metrics, small_config, write_config


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


def gradients(tmp_path, policy, name, **changes):
    """Of the first update, by name."""
    settings = {"mask__preset": "none", "train__minibatch": 0, "train__epochs": 1} | changes
    config = write_config(tmp_path / f"{name}.yaml", policy, tmp_path / name, **settings)
    run_augur("train", config, "--dump-step", tmp_path / f"{name}-dump", "log.console=false")
    tensors = load_file(tmp_path / f"{name}-dump" / "update_0.safetensors")
    return {key: tensor for key, tensor in tensors.items() if key.startswith("gradient.")}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_sums_in_bf16_keep_their_mean(policy, tmp_path, precision):
    """One micro-batch for each of 16 responses: the errors are those of bfloat16, and cancel out over a tensor."""
    common = dict(train__micro_tokens=1, model__precision=precision)
    exact = gradients(tmp_path, policy, "exact", **common)
    rounded = gradients(tmp_path, policy, "rounded", train__gradient_dtype="bf16", **common)
    differs = 0
    for name, truth in exact.items():
        error = rounded[name] - truth
        differs += int(error.count_nonzero())
        assert error.abs().max() <= 16 * 2**-8 * truth.abs().max(), name
        if truth.numel() > 1000:  # unbiased: the mean error is far below a single one
            assert error.mean().abs() <= 6 * error.std() / truth.numel() ** 0.5 + 1e-12, name
            # Each of 15 additions rounds by itself: a step of 2^-7 at most, of which sqrt(1/6) is the deviation.
            assert error.std() <= (15 / 6) ** 0.5 * 2**-7 * truth.square().mean().sqrt(), name
    assert differs > 0


def test_sums_do_not_depend_on_how_a_minibatch_is_split(policy, tmp_path):
    whole = gradients(tmp_path, policy, "whole")
    parts = gradients(tmp_path, policy, "parts", train__micro_tokens=1)
    for name, truth in whole.items():
        torch.testing.assert_close(parts[name], truth, rtol=1e-3, atol=2e-5 * float(truth.abs().max()) + 1e-9)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_sums_in_float64_are_those_of_single_responses(policy, tmp_path, precision):
    """Rounded once, from the gradients that each response has by itself; in float32 each addition rounds."""
    common = dict(train__micro_tokens=1, model__precision=precision)
    exact = gradients(tmp_path, policy, "exact", train__gradient_dtype="fp64", **common)
    rounded = gradients(tmp_path, policy, "rounded", **common)
    for name, truth in exact.items():
        torch.testing.assert_close(rounded[name], truth, rtol=0, atol=16 * 2**-24 * float(truth.abs().max()))
    assert any(not rounded[name].equal(truth) for name, truth in exact.items())


@pytest.mark.parametrize(("precision", "apart"), [("fp32", 4e-6), ("bf16", 0.02), ("fp8", 0.06)])
def test_a_prompt_that_responses_share_has_the_sum_of_their_gradients(policy, tmp_path, precision, apart):
    """Rounded once, where each response alone rounds its own: in FP8 that is a difference of about 2%."""
    common = dict(model__precision=precision, rollout__group=8)
    shared = gradients(tmp_path, policy, "shared", **common)
    alone = gradients(tmp_path, policy, "alone", train__micro_tokens=1, **common)
    difference, size = (
        sum(float(tensor.double().square().sum()) for tensor in tensors)
        for tensors in ([shared[name] - truth for name, truth in alone.items()], alone.values())
    )
    assert 0 < (difference / size) ** 0.5 < apart


def test_runs_with_bf16_sums_repeat_and_resume_to_the_bit(policy, tmp_path):
    changes = dict(
        train__steps=4, train__gradient_dtype="bf16", train__micro_tokens=1, model__precision="bf16", eval__files="[]"
    )
    run_augur("train", small_config(tmp_path, policy, "a", **changes))
    config = small_config(tmp_path, policy, "b", **changes)
    run_augur("train", config, "train.steps=2")
    run_augur("train", config)
    a, b = (load_file(tmp_path / name / "model" / "model.safetensors") for name in "ab")
    assert all(a[name].equal(b[name]) for name in a)
    plain = [line["data"]["actor/grad_norm"] for line in read_metrics(tmp_path / "a")]
    assert all(norm > 0 for norm in plain)


def test_the_memory_of_a_run_is_told_before_it_starts(policy, tmp_path):
    config = small_config(tmp_path, policy, train__steps=1, eval__files="[]", log__console="true")
    assert "memory, GiB" not in run_augur("train", config).stderr  # less than 0.1
    wide = ["rollout.prompts=512", "rollout.group=16", "rollout.max_tokens=100", "train.micro_tokens=65536"]
    wide += ["train.minibatch=0", "train.steps=0"]
    told = run_augur("train", config, f"run.dir={tmp_path / 'wide'}", *wide).stderr
    for part in ("memory, GiB of", "weights (fp32)", "optimizer states (fp32)", "gradients", "activations", "together"):
        assert part in told
    told = run_augur(
        "train", config, f"run.dir={tmp_path / 'lora'}", *wide, "lora.rank=2", "model.precision=bf16"
    ).stderr
    assert "adapters (fp32)" in told and "their base (bf16)" in told and "master weights" not in told
    told = run_augur("train", config, f"run.dir={tmp_path / 'fp8'}", *wide, "lora.rank=2", "model.precision=fp8").stderr
    assert "weights (bf16)" in told and "their base (fp8)" in told
    large = ["rollout.prompts=8192", "rollout.group=64", "rollout.max_tokens=100", "train.micro_tokens=100000000"]
    large += ["train.minibatch=0", "train.steps=0"]
    told = run_augur("train", config, f"run.dir={tmp_path / 'large'}", *large).stderr
    assert "warning: training may take" in told and "train.micro_tokens=50000000" in told
