"""The FSDP engine that takes the mask's decisions from the trainer's logits."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.ulysses import get_ulysses_sequence_parallel_rank, get_ulysses_sequence_parallel_world_size
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngineWithLMHead

from augur.verl.loss import MaskedLoss, rule_of


# verl looks for (device, vendor) before the device alone, under which its own engines are registered.
@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")
class AugurFSDPEngine(FSDPEngineWithLMHead):
    """verl's engine; where the loss is one of Augur's, it reads the support's log-probs off the logits of the same
    forward that gives the gradient."""

    def forward_step(self, micro_batch: TensorDict, loss_function: Callable | None, forward_only: bool) -> tuple:
        config = getattr(loss_function, "keywords", {}).get("config")  # a partial of verl's ppo_loss
        rule = rule_of(config) if hasattr(config, "policy_loss") else None
        if rule is not None:
            _refuse_hidden_logits(micro_batch)
            loss_function = MaskedLoss(loss_function, rule)
        return super().forward_step(micro_batch, loss_function, forward_only)

    def prepare_model_outputs(
        self,
        output: Any,  # noqa: ANN401  a transformers output
        output_args: dict,
        micro_batch: TensorDict,
        logits_processor_func: Callable | None,
    ) -> dict:
        if isinstance(logits_processor_func, MaskedLoss):
            # verl calls this for the top K of a distillation, and packs what it returns.
            tu.assign_non_tensor_data(micro_batch, "distillation_use_topk", True)
            logits_processor_func = partial(
                logits_processor_func.read_logits,
                shard=get_ulysses_sequence_parallel_rank(),
                shards=get_ulysses_sequence_parallel_world_size(),
            )
        return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)


def _refuse_hidden_logits(micro_batch: TensorDict) -> None:
    if tu.get_non_tensor_data(data=micro_batch, key="use_fused_kernels", default=False):
        raise ValueError(
            "actor_rollout_ref.model.use_fused_kernels: is True; fused kernels hide the logits that the mask reads; "
            "set it to False"
        )
    if tu.get_non_tensor_data(data=micro_batch, key="distillation_use_topk", default=False):
        raise ValueError(
            "distillation: top-K distillation uses the fields that carry the mask's support; set "
            "distillation.enabled=False"
        )
