"""The layers' products in FP8, forward and backward, against transformers with the rounding written in torch."""

import pytest
import torch
from transformers import PreTrainedModel

from model_zoo import make_model, make_sequences
from test_model import gradients, reference_loss, stored_gradients

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def rounded(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Through FP8 and back, the largest magnitude scaled to the format's largest."""
    scale = x.abs().max() / torch.finfo(kind).max
    return (x / scale).to(kind).float() * scale


class Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return rounded(x, E4M3) @ rounded(weight, E4M3).T

    @staticmethod
    def backward(context, grad):
        x, weight = context.saved_tensors
        grad = rounded(grad, E5M2)
        flat, rows = grad.flatten(0, -2), rounded(x, E4M3).flatten(0, -2)
        return grad @ rounded(weight, E4M3), flat.T @ rows


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


@pytest.mark.parametrize("flags", [("fp8",), ("fp8", "recompute"), ("fp8", "checkpoint")])
@pytest.mark.parametrize("name", ["llama-bias", "qwen3-tied-bias"])
def test_fp8_products_equal_those_of_torch(name, flags, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    sequences = make_sequences([23])
    plain = gradients(tmp_path / "model", tmp_path / "plain", sequences)
    ours = gradients(tmp_path / "model", tmp_path / "ours", sequences, *flags)
    use_fp8(model)
    loss = reference_loss(model, sequences)
    loss.backward()
    assert ours["loss"].item() == pytest.approx(loss.item(), abs=1e-5)
    truth = stored_gradients(model, tmp_path / "gradients")
    for key, gradient in truth.items():
        # A value near the middle of two FP8 numbers may go either way.
        assert (ours[key] - gradient).norm() <= 0.02 * gradient.norm() + 1e-7, key
    assert any((ours[key] - plain[key]).norm() > 0.02 * plain[key].norm() for key in truth)


def test_experts_multiply_in_fp8_as_well(tmp_path):
    make_model("qwen3-moe").save_pretrained(tmp_path / "model")
    sequences = make_sequences([40])
    plain = gradients(tmp_path / "model", tmp_path / "plain", sequences)
    ours = gradients(tmp_path / "model", tmp_path / "ours", sequences, "fp8")
    for key in (key for key in plain if "experts" in key and plain[key].norm() > 1e-6):
        cosine = torch.nn.functional.cosine_similarity(ours[key].flatten(), plain[key].flatten(), dim=0)
        assert 0.5 < cosine < 1 - 1e-6, key  # a token near a boundary goes to another expert
