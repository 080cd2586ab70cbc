"""What the mask needs from a model's forward with the log-probs of the sampled tokens, where TRL's own head runs."""

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput
from trl.trainer import utils as trl_utils

from augur import support
from augur.masks import MaskRule

LOG_RATIO_LIMIT = 20.0  # e to this is still finite when it is multiplied with an advantage


@dataclass
class Readout:
    """One forward under way. positions: batch row and position of each token's prediction, each [N]; negative ones
    count from the end, until the forward has shown where that is."""

    ids: torch.Tensor  # [N, M]
    positions: tuple[torch.Tensor, torch.Tensor]
    policy_logits: torch.Tensor | None = None  # [N, M], at the temperature
    log_square_sum: torch.Tensor | None = None  # [N], for the exact tail

    def policy(self, logprobs: torch.Tensor) -> torch.Tensor:
        """The policy's log-probs at the support [N, M] from those of the sampled tokens [N]."""
        return self.policy_logits - self.policy_logits[:, :1] + logprobs[:, None]

    def tail_square(self, policy: torch.Tensor, vocab_size: int) -> torch.Tensor | None:
        if self.log_square_sum is None:
            return None
        return support.tail_square(self.log_square_sum, policy, self.ids >= 0, vocab_size).float()


class SupportReader:
    """Reads K+1 rows of the head inside the model's forward, where sharded parameters are whole."""

    def __init__(
        self, causal_lm: PreTrainedModel, temperature: float, cast_to_fp32: bool = False, with_squares: bool = False
    ) -> None:
        self._causal_lm, self._temperature, self._cast_to_fp32 = causal_lm, temperature, cast_to_fp32
        self._scale, self._softcap = logit_transform(causal_lm)
        self._readout: Readout | None = None
        causal_lm.base_model.register_forward_hook(self._read)
        if with_squares:
            self._keep_square_sums()

    @property
    def vocab_size(self) -> int:
        """From the configuration: the head's own shape is 0 under ZeRO-3 and a shard's under FSDP."""
        return self._causal_lm.config.get_text_config().vocab_size

    @contextmanager
    def reading(self, ids: torch.Tensor, positions: tuple[torch.Tensor, torch.Tensor]) -> Iterator[Readout]:
        self._readout = Readout(ids, positions)
        try:
            yield self._readout
        finally:
            self._readout = None  # and with it the logits

    @torch.no_grad()
    def _read(self, backbone: torch.nn.Module, args: tuple, output: Any) -> None:  # noqa: ANN401  a model's output
        readout = self._readout
        if readout is None:
            return
        row, position = readout.positions
        readout.positions = (row, position % output.last_hidden_state.shape[1])
        hidden = output.last_hidden_state[readout.positions]
        head = self._causal_lm.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if isinstance(weight, DTensor):
            weight, bias = weight.full_tensor(), bias if bias is None else bias.full_tensor()
        device = weight.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        hidden = hidden.to(weight.device, torch.float32 if self._cast_to_fp32 else dtype)
        ids = readout.ids.to(weight.device)
        with trl_utils.maybe_gather_lm_head_ctx(weight, bias), torch.autocast(device, enabled=False):
            z = support.support_logits(hidden, weight, bias, ids) * self._scale
        if self._softcap:
            z = self._softcap * torch.tanh(z / self._softcap)
        readout.policy_logits = (z / self._temperature).to(readout.ids.device)

    def _keep_square_sums(self) -> None:
        """The exact tail needs the sum of squared probabilities, which TRL's fused head gives when asked."""
        trl_utils.add_fused_lm_head(
            self._causal_lm,
            temperature=self._temperature,
            cast_lm_head_to_fp32=self._cast_to_fp32,
            outputs=("log_probs", "entropy", "log_sum_sq_probs"),
        )
        forward = self._causal_lm.forward

        def forward_and_keep(*args, **kwargs) -> ModelOutput:
            output = forward(*args, **kwargs)
            if self._readout is not None:
                sums = output.log_sum_sq_probs[self._readout.positions]
                self._readout.log_square_sum = sums.to(self._readout.ids.device)
            return output

        forward_and_keep.__signature__ = inspect.signature(forward)  # generate validates its arguments against it
        self._causal_lm.forward = forward_and_keep


def log_ratio_cap(rule: MaskRule) -> float:
    """The greatest log-ratio that enters a loss: that of the rule's ratio_cap, or what keeps the ratio finite."""
    return min(LOG_RATIO_LIMIT, math.log(rule.ratio_cap)) if rule.ratio_cap else LOG_RATIO_LIMIT


def causal_lm_of(model: torch.nn.Module) -> PreTrainedModel:
    """The language model inside PEFT's wrapper, if there is one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def logit_transform(causal_lm: PreTrainedModel) -> tuple[float, float]:
    """What the model's family does to its logits: a factor, then a soft cap (0: none). As TRL's fused head reads it."""
    config = causal_lm.config.get_text_config()
    softcap = getattr(config, "final_logit_softcapping", None) or 0.0
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if getattr(config, name, None) is not None:
            return getattr(config, name), softcap
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0, softcap
    return (scaling if config.model_type == "hyperclovax" else 1 / scaling), softcap
