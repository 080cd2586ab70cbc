"""TRL's GRPOTrainer under a mask of Augur's: `from augur.trl import AugurGRPOConfig, AugurGRPOTrainer`.

The trainer records the support of every sampled token, carries it with the batch, and takes mask and ratio from it.
Rewards, advantages, the loss's reduction, KL, entropy, PEFT, distribution and logging stay TRL's.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import trl
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.generation import LogitsProcessorList
from transformers.utils import ModelOutput
from trl import GRPOTrainer
from trl.trainer import utils as trl_utils

from augur import _trl_head, guards, support
from augur._trl_config import AugurGRPOConfig
from augur.masks import MaskRule, decide
from augur.support import Support, SupportRecorder

guards.check_version("trl", trl.__version__, "1.16.0")
__all__ = ["AugurGRPOConfig", "AugurGRPOTrainer"]

_LOG_RATIO_LIMIT = 20.0


@dataclass
class _Batch:
    """What a loss under way needs: the support, and what the model's forward leaves beside its log-probs."""

    support: Support
    old_logprobs: torch.Tensor  # [B, T], what TRL takes the ratio against
    policy_logits: torch.Tensor | None = None  # [B, T, M], at the temperature
    log_square_sum: torch.Tensor | None = None  # [B, T], for the exact tail


class AugurGRPOTrainer(GRPOTrainer):
    """GRPOTrainer that decides token by token, by `args.mask_rule`, whether an update may pass."""

    def __init__(self, *args, **kwargs) -> None:
        call = inspect.signature(GRPOTrainer.__init__).bind(self, *args, **kwargs)
        if call.arguments.get("args") is None:
            model = call.arguments["model"]
            name = model if isinstance(model, str) else trl_utils.get_config_model_id(model.config)
            call.arguments["args"] = AugurGRPOConfig(f"{name.split('/')[-1]}-GRPO")  # as TRL names it
        self._refuse_arguments(call.arguments)
        self._batch: _Batch | None = None
        self._responses: list[Support] = []
        self._skip_old_logprobs = False
        self._mask_sums: dict[str, torch.Tensor] = {}
        super().__init__(*call.args[1:], **call.kwargs)
        self.rule = MaskRule.preset(self.args.mask_rule)
        self.off_policy_mask_threshold = 0.0  # TRL then calls get_off_policy_mask
        causal_lm = self.accelerator.unwrap_model(self.model)
        causal_lm = causal_lm.get_base_model() if hasattr(causal_lm, "get_base_model") else causal_lm
        self._logit_scale, self._softcap = _logit_transform(causal_lm)
        self._causal_lm = causal_lm
        self._head: _trl_head.OnePassHead | None = None
        if self._allows_one_pass():
            self._head = _trl_head.OnePassHead(causal_lm, self.rule, self.temperature, self._softcap)
        else:
            causal_lm.base_model.register_forward_hook(self._read_support)
            if self.rule.tail == "exact" and self.rule.direction == "predicted":
                self._keep_square_sums(causal_lm)
        if self.use_vllm:
            self._record_vllm()
        else:
            guards.check_generation_config(causal_lm.generation_config)

    def _allows_one_pass(self) -> bool:
        plain_model = self._logit_scale == 1 and not self.aux_loss_enabled and not self._is_vlm
        if plain_model and self.args.one_pass and _trl_head.obstacle(self.args) is None:
            return True
        if self.rule.action != "drop":
            raise ValueError(
                f"mask_rule: action is '{self.rule.action}', which needs the head's gradient in one pass; this model "
                "scales its logits, routes to experts with a loss, or sees images; set action='drop'"
            )
        return False

    @staticmethod
    def _refuse_arguments(given: dict[str, Any]) -> None:
        if not isinstance(given.get("args"), AugurGRPOConfig):
            raise ValueError(
                f"args: is a {type(given.get('args')).__name__}; pass an AugurGRPOConfig, which holds mask_rule and "
                "support_size"
            )
        if given["args"].n_gpu > 1:
            raise ValueError(
                f"{given['args'].n_gpu} GPUs in one process: the support cannot follow a batch that DataParallel "
                "splits; start one process per GPU with accelerate launch or torchrun"
            )
        if given.get("tools"):
            raise ValueError("tools: a response with tool results in it has tokens nobody sampled; leave tools out")
        if given.get("environment_factory") is not None:
            raise ValueError("environment_factory: environments add tokens nobody sampled; leave it out")
        if given.get("rollout_func") is not None:
            raise ValueError(
                "rollout_func: gives no support; leave it out, so that the trainer generates and records it"
            )

    # Recording ------------------------------------------------------------------------------------------------------

    def _record_vllm(self) -> None:
        """vLLM gives the sampled token and the K most likely ones for each token when asked for K log-probs."""
        if self.vllm_mode == "server" and self.accelerator.is_main_process:
            mode = self.vllm_generation.vllm_client.get_server_info()["model_config"]["logprobs_mode"]
            if mode != "processed_logprobs":
                raise ValueError(
                    f"vllm server: runs with --logprobs-mode {mode}, so its log-probs are not those of the sampling "
                    "temperature; restart it with --logprobs-mode processed_logprobs"
                )
        self.vllm_generation.logprobs = self.args.support_size
        generate = self.vllm_generation.generate

        def generate_and_record(*args, **kwargs) -> tuple:
            prompt_ids, completion_ids, logprobs, ids = generate(*args, **kwargs)
            if logprobs is None or ids is None:
                raise ValueError("vllm: gave no log-probs with their token ids, so there is no support to record")
            size = self.args.support_size
            self._responses = [
                support.from_ranked(*rows, size) for rows in zip(completion_ids, ids, logprobs, strict=True)
            ]
            # TRL takes the first of each row for the sampled token's.
            first = [[[x if x > -torch.inf else None] for x in r.logprobs[:, 0].tolist()] for r in self._responses]
            return prompt_ids, completion_ids, first, ids

        self.vllm_generation.generate = generate_and_record

    @contextmanager
    def _recording(self, model: torch.nn.Module) -> Iterator[None]:
        """Inside, model.generate leaves the support of what it generates in self._responses."""
        generate = model.generate

        def generate_and_record(*args, **kwargs) -> torch.Tensor:
            recorder = SupportRecorder(self.args.support_size, self.temperature)
            tokens = generate(*args, logits_processor=LogitsProcessorList([recorder]), **kwargs)
            ids, logprobs = recorder.finish(tokens[:, -1])
            self._responses = [Support(*pair) for pair in zip(ids, logprobs, strict=True)]
            return tokens

        model.generate = generate_and_record
        try:
            yield
        finally:
            del model.generate

    def _generate_single_turn(self, *args, **kwargs) -> tuple:
        if self.use_vllm:
            return super()._generate_single_turn(*args, **kwargs)
        with self._recording(self.accelerator.unwrap_model(self.model_wrapped)):
            completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        self._responses = [
            Support(*(x[: len(tokens)] for x in response))
            for tokens, response in zip(completion_ids, self._responses, strict=True)
        ]
        return completion_ids, logprobs

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        generate_every = self.args.steps_per_generation * self.num_iterations
        self._skip_old_logprobs = self.args.gradient_accumulation_steps % generate_every != 0
        output = super()._generate_and_score_completions(inputs)
        recorded = support.pad_responses(self._responses, output["completion_ids"].shape[1])
        self._responses = []
        ids, logprobs = (x.to(output["completion_ids"].device) for x in recorded)
        counted = (output["completion_mask"] != 0) & (ids[..., 0] >= 0)
        if not torch.equal(ids[..., 0][counted].long(), output["completion_ids"][counted]):
            raise RuntimeError(
                "support: the recorded tokens are not those of the batch; something between generation and loss "
                "reorders or edits completions, which the mask cannot follow"
            )
        # First dimension the batch: TRL's shuffling and splitting carry them along.
        return output | {"support_ids": ids, "support_logprobs": logprobs}

    # Deciding -------------------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        *args,
        **kwargs,
    ):
        # The first forward of a generation step would score the batch for the ratio, which is recorded already.
        if self._skip_old_logprobs:
            self._skip_old_logprobs = False
            return torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device), None, None
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        if "support_ids" not in inputs:
            raise ValueError(
                "support_ids: missing from the batch; a subclass that replaces _generate_and_score_completions must "
                "add support_ids and support_logprobs [B, T, K+1]"
            )
        if self._head is not None:
            return self._one_pass_loss(model, inputs)
        recorded = Support(inputs["support_ids"], inputs["support_logprobs"])
        old = recorded.logprobs[..., 0].clone()
        self._batch = _Batch(recorded, old)
        try:
            return super()._compute_loss(model, {**inputs, "old_per_token_logps": old})
        finally:
            self._batch = None  # and with it the logits

    def _one_pass_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        mask, advantages = inputs["completion_mask"], inputs["advantages"]
        rows = mask.bool()
        training = self.model.training
        accumulation = self.current_gradient_accumulation_steps if training else 1.0
        items = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if training:
            items = items * accumulation / self.args.steps_per_generation
        weights = _trl_head.token_weights(self.loss_type, mask, accumulation, self.max_completion_length, items)
        advantages = advantages[:, None] if advantages.dim() == 1 else advantages
        tokens = _trl_head.Tokens(
            rows,
            inputs["support_ids"][rows],
            inputs["support_logprobs"][rows],
            advantages.expand_as(mask)[rows].float(),
            weights[rows],
            inputs["ref_per_token_logps"][rows] if self.beta else None,
            self.beta,
        )
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention_mask = torch.cat([inputs["prompt_mask"], mask], 1)
        with self._head.scoring(tokens), self.accelerator.autocast():
            loss = model(input_ids=input_ids, attention_mask=attention_mask).loss
        out, self._head.result = self._head.result, None
        self._add_metrics(support.mask_sums(out.decision))
        mode = "train" if training else "eval"
        self._metrics[mode]["entropy"].append(self._mean(out.entropy))
        if self.beta:
            log_ratio = tokens.reference_logprobs - out.logprobs
            self._metrics[mode]["kl"].append(self._mean(log_ratio.exp() - log_ratio - 1))
        return loss

    def _mean(self, values: torch.Tensor) -> float:
        """Over the tokens of every rank; those without support have no value."""
        seen = torch.isfinite(values)
        sums = torch.stack([values[seen].double().sum(), seen.sum().double()])
        total, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        return total / max(count, 1.0)

    @torch.no_grad()
    def _read_support(self, backbone: torch.nn.Module, args: tuple, output: Any) -> None:
        """Inside the model's forward, where sharded parameters are whole: the support's logits from K+1 head rows."""
        batch = self._batch
        if batch is None:
            return
        ids = batch.support.ids
        hidden = output.last_hidden_state[:, -ids.shape[1] - 1 : -1]
        head = self._causal_lm.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if isinstance(weight, DTensor):
            weight, bias = weight.full_tensor(), bias if bias is None else bias.full_tensor()
        device = weight.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        hidden = hidden.to(weight.device, torch.float32 if self.args.cast_lm_head_to_fp32 else dtype)
        with trl_utils.maybe_gather_lm_head_ctx(weight, bias), torch.autocast(device, enabled=False):
            z = support.support_logits(hidden.flatten(0, 1), weight, bias, ids.flatten(0, 1)) * self._logit_scale
        if self._softcap:
            z = self._softcap * torch.tanh(z / self._softcap)
        batch.policy_logits = (z / self.temperature).view(ids.shape)

    def _keep_square_sums(self, causal_lm: PreTrainedModel) -> None:
        """The exact tail needs the sum of squared probabilities, which TRL's fused head gives when asked."""
        trl_utils.add_fused_lm_head(
            causal_lm,
            temperature=self.temperature,
            cast_lm_head_to_fp32=self.args.cast_lm_head_to_fp32,
            outputs=("log_probs", "entropy", "log_sum_sq_probs"),
        )
        forward = causal_lm.forward

        def forward_and_keep(*args, **kwargs) -> ModelOutput:
            output = forward(*args, **kwargs)
            if self._batch is not None:
                length = self._batch.support.ids.shape[1]
                self._batch.log_square_sum = output.log_sum_sq_probs[:, -length:]
            return output

        forward_and_keep.__signature__ = inspect.signature(forward)  # generate validates its arguments against it
        causal_lm.forward = forward_and_keep

    @torch.no_grad()
    def get_off_policy_mask(
        self,
        advantages: torch.Tensor,
        per_token_logps: torch.Tensor,
        sampling_per_token_logps: torch.Tensor,
        mask: torch.Tensor,
        off_policy_threshold: float,
    ) -> torch.Tensor:
        """[B, T]: 1 where a token's update may pass. TRL calls this between the forward and the ratio."""
        batch = self._batch
        rows = mask.bool()
        logprobs = per_token_logps.detach().float()
        behaviour = batch.support.logprobs[rows]  # [N, M]
        z = batch.policy_logits[rows]
        policy = z - z[:, :1] + logprobs[rows][:, None]
        vocab_size = self._causal_lm.get_output_embeddings().weight.shape[0]
        square = None
        if batch.log_square_sum is not None:
            used = batch.support.ids[rows] >= 0
            square = support.tail_square(batch.log_square_sum[rows], policy, used, vocab_size).float()
        decision = decide(self.rule, behaviour, policy, advantages.expand_as(mask)[rows].float(), vocab_size, square)
        keep = torch.zeros_like(rows)
        keep[rows] = decision.keep
        self._limit_ratio(batch.old_logprobs, logprobs)
        self._add_metrics(support.mask_sums(decision))
        return keep.to(per_token_logps.dtype)

    def _limit_ratio(self, old: torch.Tensor, logprobs: torch.Tensor) -> None:
        """TRL takes the ratio exp(log pi - old) next and multiplies it with the mask. Moving `old` where the log-ratio
        leaves its limits keeps that product finite, and a capped ratio keeps its gradient."""
        cap = min(_LOG_RATIO_LIMIT, torch.tensor(self.rule.ratio_cap).log().item()) if self.rule.ratio_cap else 20.0
        old.copy_(torch.where(torch.isfinite(old), old.clamp(logprobs - cap, logprobs + _LOG_RATIO_LIMIT), logprobs))

    # Logging --------------------------------------------------------------------------------------------------------

    def _add_metrics(self, sums: torch.Tensor) -> None:
        mode = "train" if self.model.training else "eval"
        total = self.accelerator.reduce(sums, reduction="sum")
        self._mask_sums[mode] = self._mask_sums.get(mode, 0) + total

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        mode = "train" if self.model.training else "eval"
        sums = self._mask_sums.pop(mode, None)
        if sums is not None:
            for name, metric in support.mask_metrics(sums).items():
                self._metrics[mode][name] = [metric.value]
        super().log(logs, start_time)


def _logit_transform(causal_lm: PreTrainedModel) -> tuple[float, float]:
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
