"""The layers' products in FP8, forward and backward, against transformers with the rounding written in torch."""

import pytest
import torch
from transformers import PreTrainedModel

from conftest import run_augur
from model_zoo import make_model, make_sequences
from test_model import gradients, reference_loss, stored_gradients
from train_runs import make_policy, read_metrics, write_config

E4M3 = torch.float8_e4m3fn


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Through FP8 and back, the largest magnitude of each row scaled to the format's largest."""
    largest = x.abs().amax(-1, keepdim=True)
    scale = torch.where(largest == 0, 1.0, largest / torch.finfo(E4M3).max)
    return (x / scale).to(E4M3).float() * scale


class Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return rounded(x) @ rounded(weight).T

    @staticmethod
    def backward(context, grad):
        x, weight = context.saved_tensors
        flat, rows = grad.flatten(0, -2), x.flatten(0, -2)
        return rounded(grad) @ rounded(weight.T).T, flat.T @ rows


def fuse(linears: list[torch.nn.Linear]) -> None:
    """Makes neighbouring layers one product, as Augur computes them; the first is called first."""
    seen = {}
    sizes = [linear.out_features for linear in linears]

    def forward_of(index):
        def forward(x):
            if index == 0:
                out = Fp8Linear.apply(x, torch.cat([linear.weight for linear in linears]))
                seen["parts"] = out.split(sizes, -1)
            out = seen["parts"][index]
            return out if linears[index].bias is None else out + linears[index].bias

        return forward

    for index, linear in enumerate(linears):
        linear.forward = forward_of(index)


def use_fp8(model: PreTrainedModel) -> None:
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        fuse([attention.q_proj, attention.k_proj, attention.v_proj])
        fuse([attention.o_proj])
        fuse([mlp.gate_proj, mlp.up_proj])
        fuse([mlp.down_proj])


def reference(name: str, sequences: list, perturbed: float = 0) -> tuple[float, dict]:
    """Loss and gradients of transformers with FP8 products, of weights off by this share."""
    model = make_model(name)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + perturbed * torch.randn_like(parameter))
    use_fp8(model)
    loss = reference_loss(model, sequences)
    loss.backward()
    return loss.item(), model


@pytest.mark.parametrize("flags", [("fp8",), ("fp8", "recompute"), ("fp8", "checkpoint")])
@pytest.mark.parametrize("name", ["llama-bias", "qwen3-tied-bias"])
def test_fp8_products_equal_those_of_torch(name, flags, tmp_path):
    """A value in the middle between two FP8 numbers may go either way, so the reference is held to itself, too."""
    make_model(name).save_pretrained(tmp_path / "model")
    sequences = make_sequences([23])
    plain = gradients(tmp_path / "model", tmp_path / "plain", sequences)
    ours = gradients(tmp_path / "model", tmp_path / "ours", sequences, *flags)
    loss, model = reference(name, sequences)
    truth = stored_gradients(model, tmp_path / "gradients")
    other_loss, model = reference(name, sequences, perturbed=1e-6)
    other = stored_gradients(model, tmp_path / "other")
    assert ours["loss"].item() == pytest.approx(loss, abs=1e-5 + 3 * abs(other_loss - loss))
    for key, gradient in truth.items():
        own = (other[key] - gradient).norm()
        assert (ours[key] - gradient).norm() <= 0.02 * gradient.norm() + 2 * own + 1e-7, key
    last = max(key for key in truth if "mlp.down_proj.weight" in key)  # nothing before it rounds a gradient
    assert (ours[last] - truth[last]).norm() < 0.02 * truth[last].norm()
    assert any((ours[key] - plain[key]).norm() > 0.02 * plain[key].norm() for key in truth)


def test_experts_multiply_in_fp8_as_well(tmp_path):
    make_model("qwen3-moe").save_pretrained(tmp_path / "model")
    sequences = make_sequences([40])
    plain = gradients(tmp_path / "model", tmp_path / "plain", sequences)
    ours = gradients(tmp_path / "model", tmp_path / "ours", sequences, "fp8")
    for key in (key for key in plain if "experts" in key and plain[key].norm() > 1e-6):
        cosine = torch.nn.functional.cosine_similarity(ours[key].flatten(), plain[key].flatten(), dim=0)
        assert 0.5 < cosine < 1 - 1e-6, key  # a token near a boundary goes to another expert


def test_gradients_do_not_depend_on_the_split_into_micro_batches(tmp_path):
    """A scale per token: what shares a token's micro-batch has no part in its rounding, but for the gradient of a
    prompt that responses share, which is rounded once."""
    policy = make_policy(tmp_path / "policy", hidden=64)

    def norms(precision):
        found = []
        for micro_tokens in (4096, 96, 40):
            run = tmp_path / f"{precision}-{micro_tokens}"
            settings = {"model__precision": precision, "train__micro_tokens": micro_tokens, "train__steps": 1}
            settings |= {"train__minibatch": 4, "train__epochs": 1, "reward__overlong_buffer": 4}
            run_augur("train", write_config(tmp_path / "config.yaml", policy, run, **settings))
            found.append(read_metrics(run)[-1]["data"]["actor/grad_norm"])
        return found

    fp8, bf16 = norms("fp8"), norms("bf16")
    assert min(fp8) > 0
    assert (max(fp8) - min(fp8)) / min(fp8) <= 2 * (max(bf16) - min(bf16)) / min(bf16) + 1e-3, (fp8, bf16)
