"""The FSDP engine that takes the mask's decisions from the trainer's logits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.ulysses import get_ulysses_sequence_parallel_rank, get_ulysses_sequence_parallel_world_size
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngineWithLMHead
from verl.workers.utils.padding import no_padding_2_padding

from augur.support import Support
from augur.verl.loss import SUPPORTED_TOKENS, MaskedLoss, rule_of


class MaskedEngine:
    """Before an engine of verl's in the order of bases: puts the mask around a loss of Augur's."""

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable | None, forward_only: bool = False
    ) -> Any:  # noqa: ANN401
        config = getattr(loss_function, "keywords", {}).get("config")  # a partial of verl's ppo_loss
        rule = rule_of(config) if hasattr(config, "policy_loss") else None
        if rule is not None:
            _refuse_hidden_logits(data)
            self._count_support(data, _check_support(data))
            loss_function = MaskedLoss(loss_function, rule)
        return super().forward_backward_batch(data, loss_function, forward_only)

    def _count_support(self, data: TensorDict, tokens: torch.Tensor) -> None:
        """Notes how many response tokens of the mini-batch have a support, on all ranks, as verl counts the tokens."""
        tokens = tokens.to(get_device_id())
        if not getattr(self.engine_config, "dynamic_context_parallel", False):
            torch.distributed.all_reduce(tokens, group=self.get_data_parallel_group())
        tu.assign_non_tensor(data, **{SUPPORTED_TOKENS: tokens.item()})


# verl looks for (device, vendor) before the device alone, under which its own engines are registered.
@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")
class AugurFSDPEngine(MaskedEngine, FSDPEngineWithLMHead):
    """verl's engine; where the loss is one of Augur's, it reads the support's log-probs off the logits of the same
    forward that gives the gradient."""

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
                read_packed,
                logits_processor_func,
                shard=get_ulysses_sequence_parallel_rank(),
                shards=get_ulysses_sequence_parallel_world_size(),
            )
        return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)


def read_packed(
    loss: MaskedLoss, student_logits: torch.Tensor, data: TensorDict, shard: int = 0, shards: int = 1
) -> dict:
    """Decisions [1, n] from packed logits [1, n, V]. shard: which part of the packed sequence they are, under sequence
    parallelism."""
    rows = student_logits.shape[1]

    def part(x: torch.Tensor, value: float) -> torch.Tensor:
        x = torch.nn.functional.pad(x, (0, 0, 0, max(0, rows * shards - len(x))), value=value)
        return x[rows * shard : rows * (shard + 1)]

    ids, logprobs = flat_support(data)
    out = loss.decide(student_logits[0], Support(part(ids, -1), part(logprobs, -torch.inf)))
    return {name: x[None] for name, x in out.items()}


def flat_support(data: TensorDict) -> Support:
    """[tokens, M], the sequences of the batch one behind the other; row t belongs to token t + 1.

    A sequence whose support has another length has none: verl 0.9.0 gives the samples with which it fills a batch the
    support of a whole response.
    """
    lengths = [len(tokens) for tokens in data["input_ids"].unbind()]

    def joined(x: torch.Tensor, value: float) -> torch.Tensor:
        rows = zip(x.unbind(), lengths, strict=True)  # dense where all are as long, else nested
        return torch.cat([row if len(row) == n else row.new_full((n, row.shape[1]), value) for row, n in rows])

    return Support(joined(data["teacher_ids"], -1), joined(data["teacher_logprobs"], -torch.inf))


def _refuse_hidden_logits(data: TensorDict) -> None:
    if tu.get_non_tensor_data(data=data, key="use_fused_kernels", default=False):
        raise ValueError(
            "actor_rollout_ref.model.use_fused_kernels: is True; fused kernels hide the logits that the mask reads; "
            "set it to False"
        )
    if tu.get_non_tensor_data(data=data, key="distillation_use_topk", default=False):
        raise ValueError(
            "distillation: top-K distillation uses the fields that carry the mask's support; set "
            "distillation.enabled=False"
        )


def _check_support(data: TensorDict) -> torch.Tensor:
    """How many response tokens have a support. Here, because an error in the rollout would not end the run."""
    if "teacher_ids" not in data or "teacher_logprobs" not in data:
        raise ValueError(
            "support: the batch has none; the rollout must record it, so use the agent loops single_turn_agent or "
            "tool_agent, or derive your own from augur.verl.SupportMixin, and see that `pip show augur-rl` finds the "
            "package on every node"
        )
    recorded = no_padding_2_padding(flat_support(data).ids[:, 0], data)  # [B, T], of the responses
    fields = data.select("responses", "response_mask").to_padded_tensor()
    counted = fields["response_mask"].bool()
    known = counted & (recorded >= 0)
    if counted.any() and not known.any():
        raise ValueError(
            "support: no token of the batch has one, so nothing would be learned; the rollout's servers gave no top-K "
            "log-probs, and the log of the agent loop workers says why"
        )
    if not torch.equal(recorded[known].long(), fields["responses"][known].long()):
        raise RuntimeError(
            "support: the recorded tokens are not those of the batch; something between generation and loss reorders "
            "or edits responses, which the mask cannot follow"
        )
    return known.sum()
