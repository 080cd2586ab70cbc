"""The Megatron engine that takes the mask's decisions from vocabulary-parallel logits."""

from collections.abc import Callable
from functools import partial

import torch
from megatron.core import parallel_state as mpu
from tensordict import TensorDict
from verl.models.mcore.util import preprocess_bshd_engine, preprocess_thd_engine
from verl.utils import tensordict_utils as tu
from verl.utils.megatron_utils import unwrap_model
from verl.workers.engine import EngineRegistry
from verl.workers.engine.megatron import MegatronEngineWithLMHead

from augur.support import Support, VocabShard
from augur.verl.engine import MaskedEngine, flat_support
from augur.verl.loss import MaskedLoss


@EngineRegistry.register(model_type="language_model", backend="megatron", device="cuda", vendor="nvidia")
class AugurMegatronEngine(MaskedEngine, MegatronEngineWithLMHead):
    """verl's engine; where the loss is one of Augur's, the last pipeline stage reads the support's log-probs off its
    logits, each rank of a tensor-parallel group from its part of the vocabulary. Context parallelism and packing are
    verl's, and precision, FP8 too, is Megatron's."""

    def _lm_head_logits_processor(
        self,
        logits: torch.Tensor,
        label: torch.Tensor,
        temperature: torch.Tensor,
        *,
        distillation_use_topk: bool,
        logits_processor_func: Callable | None,
        **kwargs,
    ) -> dict:
        if isinstance(logits_processor_func, MaskedLoss):
            # verl calls this for the top K of a distillation, on logits at the temperature.
            distillation_use_topk, logits_processor_func = True, partial(self._read_logits, logits_processor_func)
        return super()._lm_head_logits_processor(
            logits,
            label,
            temperature,
            distillation_use_topk=distillation_use_topk,
            logits_processor_func=logits_processor_func,
            **kwargs,
        )

    def _read_logits(
        self, loss: MaskedLoss, student_logits: torch.Tensor, data: TensorDict, data_format: str
    ) -> dict[str, torch.Tensor]:
        """Decisions [B, S] from this rank's logits [B, S, V / tensor-parallel size]."""
        place = self._places(data, data_format)
        ids, logprobs = (x[place.clamp(min=0)] for x in flat_support(data))
        outside = (place < 0)[..., None]
        recorded = Support(ids.masked_fill(outside, -1), logprobs.masked_fill(outside, -torch.inf))
        shard = VocabShard(
            mpu.get_tensor_model_parallel_group(),
            mpu.get_tensor_model_parallel_rank() * student_logits.shape[-1],
            self.model_config.hf_config.get_text_config().vocab_size,  # rows of the head behind it are padding
        )
        out = loss.decide(student_logits.flatten(0, 1), Support(*(x.flatten(0, 1) for x in recorded)), shard)
        return {name: x.view(place.shape) for name, x in out.items()}

    def _places(self, data: TensorDict, data_format: str) -> torch.Tensor:
        """[B, S]: which token of the batch, counted through, each row of the logits belongs to; -1 for padding. Found
        by packing the numbers of the tokens as verl packs the tokens."""
        tokens = data["input_ids"]
        numbers = torch.arange(1, len(tokens.values()) + 1, device=tokens.device)
        numbers = torch.nested.nested_tensor_from_jagged(numbers, tokens.offsets())
        model, settings = unwrap_model(self.module[-1]), self.engine_config
        fp8 = {"use_fp8_padding": model.config.fp8 in ("e4m3", "hybrid")}
        if data_format == "thd":
            packed = preprocess_thd_engine(
                numbers,
                local_cp_size=tu.get_non_tensor_data(data, key="local_cp_size", default=None),
                pad_to_length_bucket=settings.pad_to_length_bucket if settings.pad_to_length else None,
                cp_layout=self._get_context_parallel_layout(model),
                **fp8,
            )
        else:
            longest = tu.get_non_tensor_data(data, key="forced_max_seqlen", default=None)
            packed = preprocess_bshd_engine(numbers, forced_max_seqlen=longest, **fp8)
        return packed[0] - 1
