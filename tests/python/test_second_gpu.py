"""A GPU that is not the current one, as with run.device: cuda:1 or a model spread over several."""

import json

import pytest
import torch

import augur
from augur import MaskRule
from conftest import ROOT, run_augur
from mask_data import make_batch, make_head_batch
from train_runs import make_policy, read_metrics, without_times, write_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

SECOND = "cuda:1"


@pytest.fixture(autouse=True)
def first_is_current():
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


def assert_same_on_second(work, *tensors):
    """What `work` makes of tensors on the second GPU is what it makes on the first."""
    found, expected = (work(*(x.to(device) for x in tensors)) for device in (SECOND, "cuda:0"))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.device == torch.device(SECOND)
        torch.testing.assert_close(ours.cpu(), theirs.cpu())


def test_the_losses_and_decisions():
    def dense(logits, ids, logprobs, advantages):
        z = logits.clone().requires_grad_()
        out = augur.policy_loss(MaskRule(), z, ids, logprobs, advantages)
        out.loss.backward()
        return out.loss.detach(), out.logprobs, *out.decision, z.grad

    assert_same_on_second(dense, *make_batch(dtype=torch.float32))

    def linear(hidden, weight, bias, *recorded):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        out = augur.linear_policy_loss(MaskRule(), h, w, *recorded, bias=bias)
        out.loss.backward()
        return out.loss.detach(), out.logprobs, *out.decision, h.grad, w.grad

    hidden, weight, bias, recorded = make_head_batch(dtype=torch.float32)
    assert_same_on_second(linear, hidden, weight, bias, *recorded)


def test_generation():
    def generate(device):
        done = run_augur("generate", ROOT / "models" / "tiny", "--prompt", "3 1 2 =", "--device", device)
        return [json.loads(line)["text"] for line in done.stdout.splitlines()]

    assert generate(SECOND) == generate("cuda:0")
    rollouts = augur.generate(str(ROOT / "models" / "tiny"), ["3 1 2 ="], device=SECOND)
    assert len(rollouts) == 1 and torch.cuda.current_device() == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("staleness", [0, 1])
def test_training(tmp_path, precision, staleness):
    policy = make_policy(tmp_path / "model")
    for name, device in (("first", "cuda:0"), ("second", SECOND)):
        settings = dict(model__precision=precision, run__device=device, rollout__staleness=staleness, train__steps=3)
        run_augur("train", write_config(tmp_path / f"{name}.yaml", policy, tmp_path / name, **settings))
    assert without_times(read_metrics(tmp_path / "second")) == without_times(read_metrics(tmp_path / "first"))
