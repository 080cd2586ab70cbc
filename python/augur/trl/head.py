"""TRL's loss in one pass over the LM head: log-probs, decisions and gradients together.

TRL's fused head scores the sampled tokens in the forward and repeats the product with the head in the backward. Where
the loss of a token is known in the forward, which it is once its advantage and weight are, one product does.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from accelerate.utils import DistributedType
from transformers import PreTrainedModel
from transformers.utils import ModelOutput
from trl import GRPOConfig
from trl.trainer import utils as trl_utils

from augur.head import linear_policy_loss
from augur.loss import PolicyLoss
from augur.masks import MaskRule
from augur.trl.readout import logit_transform

_PLAIN_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo")
_WHOLE_WEIGHTS = (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)


def obstacle(args: GRPOConfig) -> str | None:
    """The setting under which a token's loss is not known in the forward, or the head not whole there; or None."""
    if args.loss_type not in _PLAIN_LOSSES:
        return f"loss_type={args.loss_type}"
    if args.importance_sampling_level != "token":
        return f"importance_sampling_level={args.importance_sampling_level}"
    if args.distributed_state is not None and args.distributed_state.distributed_type not in _WHOLE_WEIGHTS:
        return f"sharding of the weights ({args.distributed_state.distributed_type.value})"
    if args.beta and args.use_bias_correction_kl:
        return "use_bias_correction_kl=True with beta"
    wanted = {
        "delta": None,
        "top_entropy_quantile": 1.0,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "cast_lm_head_to_fp32": False,
        "fp16": False,
        "fp16_full_eval": False,
    }
    for name, value in wanted.items():
        if getattr(args, name) != value:
            return f"{name}={getattr(args, name)}"
    return None


def model_obstacle(causal_lm: PreTrainedModel) -> str | None:
    """What of the model itself rules one pass out, or None."""
    scale, _ = logit_transform(causal_lm)
    if scale != 1:
        return f"the model's factor {scale:g} on its logits"
    if len(set(getattr(causal_lm, "hf_device_map", {}).values())) > 1:
        return "the model's device_map, which puts it on several devices"
    return None


@dataclass
class Tokens:
    """The tokens of a batch that count, as the head takes them. positions: batch row and position of the prediction
    of each, [N]; negative ones count from the end."""

    positions: tuple[torch.Tensor, torch.Tensor]
    ids: torch.Tensor  # [N, M]
    logprobs: torch.Tensor  # [N, M]
    advantages: torch.Tensor  # [N]
    weights: torch.Tensor  # [N], what TRL's reduction multiplies a token's loss with
    reference_logprobs: torch.Tensor | None = None  # [N]
    kl_coef: float = 0.0


class OnePassHead:
    """Replaces the causal LM's forward by one that, inside `scoring`, returns the whole loss of the tokens given."""

    def __init__(self, causal_lm: PreTrainedModel, rule: MaskRule, temperature: float) -> None:
        self._causal_lm, self._rule, self._temperature = causal_lm, rule, temperature
        _, self._softcap = logit_transform(causal_lm)
        self._tokens: Tokens | None = None
        self.result: PolicyLoss | None = None
        forward = causal_lm.forward

        def forward_or_score(*args, **kwargs) -> ModelOutput:
            return forward(*args, **kwargs) if self._tokens is None else self._score(*args, **kwargs)

        forward_or_score.__signature__ = inspect.signature(forward)  # generate validates its arguments against it
        causal_lm.forward = forward_or_score

    @contextmanager
    def scoring(self, tokens: Tokens) -> Iterator[None]:
        self._tokens = tokens
        try:
            yield
        finally:
            self._tokens = None

    def _score(self, *args, **kwargs) -> ModelOutput:
        tokens = self._tokens
        hidden = self._causal_lm.base_model(*args, use_cache=False, **kwargs).last_hidden_state
        hidden = hidden[tokens.positions]
        head = self._causal_lm.get_output_embeddings()
        device = head.weight.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        reference = tokens.reference_logprobs
        with torch.autocast(device, enabled=False):
            out = linear_policy_loss(
                self._rule,
                hidden.to(dtype),
                head.weight.to(dtype),
                tokens.ids,
                tokens.logprobs,
                tokens.advantages,
                tokens.weights,
                self._temperature,
                bias=None if head.bias is None else head.bias.to(dtype),
                softcap=self._softcap,
                reference_logprobs=reference,
                kl_coef=tokens.kl_coef,
                reference_kl="none" if reference is None else "k3",
            )
        self.result = out
        return trl_utils.FusedCausalLMOutput(loss=out.loss)


def token_weights(
    loss_type: str, mask: torch.Tensor, accumulation: float, max_length: int, items: torch.Tensor | float
) -> torch.Tensor:
    """[B, T]: what TRL's reduction multiplies each token's loss with. items: dapo's share of tokens."""
    mask = mask.float()
    if loss_type == "grpo":
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / len(mask) / accumulation
    if loss_type == "bnpo":
        return mask / mask.sum().clamp(min=1) / accumulation
    if loss_type == "dr_grpo":
        return mask / (len(mask) * max_length) / accumulation
    return mask / items
