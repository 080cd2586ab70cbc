"""GRPOTrainer under a mask."""

import dataclasses
import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.generation import LogitsProcessorList
from trl import GRPOTrainer
from trl.trainer import utils as trl_utils

from augur import guards, support
from augur.masks import MaskRule, decide
from augur.support import Support, SupportRecorder
from augur.trl import recorded
from augur.trl.config import AugurGRPOConfig
from augur.trl.head import OnePassHead, Tokens, model_obstacle, obstacle, token_weights
from augur.trl.readout import LOG_RATIO_LIMIT, Readout, SupportReader, causal_lm_of, log_ratio_cap
from augur.trl.vllm import check_server, record_colocated, server_info

_NO_SUPPORT = (
    "rollout_func: gave no support; return the log-probs that trainer.vllm_generation.generate gave it as they are, or "
    "support_ids and support_logprobs [T, K+1] for each completion"
)


class AugurGRPOTrainer(GRPOTrainer):
    """GRPOTrainer that decides token by token, by `args.mask_rule`, whether an update may pass."""

    def __init__(self, *args, **kwargs) -> None:
        call = inspect.signature(GRPOTrainer.__init__).bind(self, *args, **kwargs)
        if call.arguments.get("args") is None:
            model = call.arguments["model"]
            name = model if isinstance(model, str) else trl_utils.get_config_model_id(model.config)
            call.arguments["args"] = AugurGRPOConfig(f"{name.split('/')[-1]}-GRPO")  # as TRL names it
        if not isinstance(call.arguments["args"], AugurGRPOConfig):
            raise ValueError(
                f"args: is a {type(call.arguments['args']).__name__}; pass an AugurGRPOConfig, which holds mask_rule "
                "and support_size"
            )
        self._responses: list[Support] = []
        self._skip_old_logprobs = False
        self._mask_sums: dict[str, torch.Tensor] = {}
        super().__init__(*call.args[1:], **call.kwargs)
        if self.args.n_gpu > 1:  # settled by now: a model with a device_map has set it to 1
            raise ValueError(
                f"{self.args.n_gpu} GPUs in one process: the support cannot follow a batch that DataParallel "
                "splits; start one process per GPU with accelerate launch or torchrun"
            )
        self.rule = MaskRule.preset(self.args.mask_rule)
        if self.args.delta is not None:
            self.rule = dataclasses.replace(self.rule, dual_clip=self.args.delta)
        self.off_policy_mask_threshold = 0.0  # TRL then calls get_off_policy_mask
        causal_lm = causal_lm_of(self.accelerator.unwrap_model(self.model))
        if self.accelerator.is_main_process:
            guards.warn_dropout(self.accelerator.unwrap_model(self.model))
        self._head: OnePassHead | None = None
        self._reader: SupportReader | None = None
        self._readout: Readout | None = None
        why = self._one_pass_obstacle(causal_lm)
        if why is None:
            self._head = OnePassHead(causal_lm, self.rule, self.temperature)
        else:
            self._log_two_passes(why)
            exact = self.rule.tail == "exact" and self.rule.direction == "predicted"
            self._reader = SupportReader(causal_lm, self.temperature, self.args.cast_lm_head_to_fp32, exact)
            if self.args.torch_compile:
                torch.compiler.reset()  # a graph that was compiled without the reader's hook would not be told of it
        if self.use_vllm:
            self._record_vllm()
        elif self.rollout_func is None:
            guards.check_generation_config(causal_lm.generation_config)

    def _one_pass_obstacle(self, causal_lm: torch.nn.Module) -> str | None:
        if not self.args.one_pass:
            return "one_pass=False"
        if self.aux_loss_enabled:
            return "the auxiliary loss of the model's experts"
        if self._is_vlm:
            return "a model that sees images"
        return obstacle(self.args) or model_obstacle(causal_lm)

    def _log_two_passes(self, why: str) -> None:
        if self.args.one_pass and self.accelerator.is_main_process:
            logging.getLogger("augur").warning(
                f"one_pass=True: {why} rules one pass over the head out, so TRL's own head runs and the support is "
                "read separately; the decisions are the same (mask/one_pass logs 0)"
            )

    # Recording ------------------------------------------------------------------------------------------------------

    def _record_vllm(self) -> None:
        """vLLM gives the sampled token and the K most likely ones for each token when asked for K log-probs."""
        if self.vllm_mode == "colocate":
            record_colocated(self.vllm_generation.llm, self.args.support_size)
            return
        if self.accelerator.is_main_process:
            info = server_info(self.vllm_generation.vllm_client, self.args.support_size)
            check_server(info, self.args.support_size)
        self.vllm_generation.logprobs = self.args.support_size
        generate = self.vllm_generation.generate

        def generate_and_record(*args, **kwargs) -> tuple:
            prompt_ids, completion_ids, logprobs, ids = generate(*args, **kwargs)
            if logprobs is None or ids is None:
                raise ValueError("vllm: gave no log-probs with their token ids, so there is no support to record")
            responses = [
                support.from_ranked(*rows, self.args.support_size)
                for rows in zip(completion_ids, ids, logprobs, strict=True)
            ]
            # TRL takes the first of each row for the sampled token's.
            first = [[[x] for x in recorded.attach(response)] for response in responses]
            return prompt_ids, completion_ids, first, ids

        self.vllm_generation.generate = generate_and_record

    @contextmanager
    def _recording(self, model: torch.nn.Module, responses: list[Support]) -> Iterator[None]:
        """Inside, model.generate adds the support of what it generates to `responses`."""
        generate = model.generate

        def generate_and_record(*args, **kwargs) -> torch.Tensor:
            recorder = SupportRecorder(self.args.support_size, self.temperature)
            tokens = generate(*args, logits_processor=LogitsProcessorList([recorder]), **kwargs)
            ids, logprobs = recorder.finish(tokens[:, -1])
            responses.extend(Support(*pair) for pair in zip(ids.cpu(), logprobs.cpu(), strict=True))
            return tokens

        model.generate = generate_and_record
        try:
            yield
        finally:
            del model.generate

    def _generate_single_turn(self, *args, **kwargs) -> tuple:
        if self.use_vllm:
            return super()._generate_single_turn(*args, **kwargs)
        responses: list[Support] = []
        with self._recording(self.accelerator.unwrap_model(self.model_wrapped), responses):
            completion_ids, _ = super()._generate_single_turn(*args, **kwargs)
        cut = [
            Support(*(x[: len(tokens)] for x in response))
            for tokens, response in zip(completion_ids, responses, strict=True)
        ]
        return completion_ids, [recorded.attach(response) for response in cut]

    def _generate(self, prompts: list) -> tuple:
        """After all turns: what TRL did to the tokens it did to their log-probs, and with them to the support."""
        output = list(super()._generate(prompts))
        if output[4] is not None:  # a rollout_func may return what vllm_generation.generate gave
            output[4] = [recorded.unwrapped(response) for response in output[4]]
        completion_ids, logprobs, extra = output[1], output[4], output[5]
        columns = self.args.support_size + 1
        given = [extra.pop(name, None) for name in ("support_ids", "support_logprobs")]
        if None not in given:
            rows = [_given_support(*row) for row in zip(*given, strict=True)]
            widest = max([columns, *(row.ids.shape[1] for row in rows)])
            self._responses = [support.pad_columns(row, widest) for row in rows]
        else:
            self._responses = [recorded.collect(response, columns) for response in logprobs or []]
        if self.rollout_func is not None and not any((r.ids[:, 0] >= 0).any() for r in self._responses):
            raise ValueError(_NO_SUPPORT)
        if not self.use_vllm and self.rollout_func is None:
            output[4] = None  # as TRL has it without vLLM
        lengths = [len(tokens) for tokens in completion_ids]
        if lengths != [len(response.ids) for response in self._responses]:
            raise RuntimeError(
                "support: completions and their log-probs differ in length; something edits completions after "
                "generation, which the mask cannot follow"
            )
        return tuple(output)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        generate_every = self.args.steps_per_generation * self.num_iterations
        self._skip_old_logprobs = self.args.gradient_accumulation_steps % generate_every != 0
        output = super()._generate_and_score_completions(inputs)
        padded = support.pad_responses(self._responses, output["completion_ids"].shape[1])
        self._responses = []
        ids, logprobs = (x.to(output["completion_ids"].device) for x in padded)
        counted = _loss_mask(output) != 0
        known = counted & (ids[..., 0] >= 0)
        if counted.any() and not known.any():
            raise ValueError(
                "support: no token of the batch has one, so nothing would be learned; see that vLLM's log-probs are "
                "numbers"
            )
        if not torch.equal(ids[..., 0][known].long(), output["completion_ids"][known]):
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
        rows = _loss_mask(inputs).bool()
        row, token = rows.nonzero(as_tuple=True)
        # Of what predicts the token, counted from the end: PEFT may put virtual tokens before the prompt.
        positions = (row, token - inputs["completion_ids"].shape[1] - 1)
        recorded_support = Support(inputs["support_ids"][rows], inputs["support_logprobs"][rows])
        if self._head is not None:
            return self._one_pass_loss(model, inputs, recorded_support, positions)
        old = inputs["support_logprobs"][..., 0].clone()
        own = {"old_per_token_logps": old}
        if self.beta:
            own["ref_per_token_logps"] = inputs["ref_per_token_logps"].clone()
        self._behaviour, self._settled = recorded_support.logprobs, own
        delta, self.args.delta = self.args.delta, None  # without a clip TRL's would cut where A > 0: it is in the rule
        with self._reader.reading(recorded_support.ids, positions) as self._readout:
            try:
                return super()._compute_loss(model, inputs | own)
            finally:
                self.args.delta = delta
                self._behaviour = self._settled = self._readout = None

    def _one_pass_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        recorded_support: Support,
        positions: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        mask, advantages = _loss_mask(inputs), inputs["advantages"]
        rows = mask.bool()
        training = self.model.training
        accumulation = self.current_gradient_accumulation_steps if training else 1.0
        items = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if training:
            items = items * accumulation / self.args.steps_per_generation
        weights = token_weights(self.loss_type, mask, accumulation, self.max_completion_length, items)
        advantages = advantages[:, None] if advantages.dim() == 1 else advantages
        tokens = Tokens(
            positions,
            *recorded_support,
            advantages.expand_as(mask)[rows].float(),
            weights[rows],
            inputs["ref_per_token_logps"][rows] if self.beta else None,
            self.beta,
        )
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with self._head.scoring(tokens), self.accelerator.autocast():
            loss = model(input_ids=input_ids, attention_mask=attention_mask).loss
        out, self._head.result = self._head.result, None
        self._add_metrics(support.mask_sums(out.decision))
        mode = "train" if training else "eval"
        self._metrics[mode]["entropy"].append(self._mean(out.entropy))
        if self.beta:
            log_ratio = tokens.reference_logprobs - out.logprobs
            kl = log_ratio.exp() - log_ratio - 1
            self._metrics[mode]["kl"].append(self._mean(torch.where(torch.isfinite(kl), kl, 0)))  # as TRL has it below
        return loss

    def _mean(self, values: torch.Tensor) -> float:
        """Over the tokens of every rank; those without support have no value."""
        seen = torch.isfinite(values)
        sums = torch.stack([values[seen].double().sum(), seen.sum().double()])
        total, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        return total / max(count, 1.0)

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
        rows = mask.bool()
        logprobs = per_token_logps.detach().float()
        policy = self._readout.policy(logprobs[rows])
        vocab_size = self._reader.vocab_size
        square = self._readout.tail_square(policy, vocab_size)
        per_token = advantages.expand_as(mask)[rows].float()
        decision = decide(self.rule, self._behaviour, policy, per_token, vocab_size, square)
        keep = torch.zeros_like(rows)
        keep[rows] = decision.keep
        self._settle(logprobs)
        if self.importance_sampling_level == "sequence":
            self._hold(rows & ~keep, per_token_logps)
        self._add_metrics(support.mask_sums(decision))
        return keep.to(per_token_logps.dtype)

    def _hold(self, dropped: torch.Tensor, logprobs: torch.Tensor) -> None:
        """A sequence's one ratio takes every token's gradient to all of them; a dropped token's log-ratio keeps its
        value and loses its gradient, since `old` takes the same."""
        old = self._settled["old_per_token_logps"]
        log_ratio = (logprobs - old)[dropped]  # a number here: the caller records no gradients
        with torch.enable_grad():
            old[dropped] = (logprobs[dropped] - log_ratio).to(old.dtype)

    def _settle(self, logprobs: torch.Tensor) -> None:
        """TRL takes the ratio exp(log pi - old) next and multiplies it with the mask. Moving `old` where the log-ratio
        leaves its limits keeps that product finite, and a capped ratio keeps its gradient. A token without support gets
        the ratio 1, which the mask drops, and a KL of 0 without a gradient."""
        old = self._settled["old_per_token_logps"]
        missing = ~torch.isfinite(old)
        old.clamp_(logprobs - log_ratio_cap(self.rule), logprobs + LOG_RATIO_LIMIT)
        for x in self._settled.values():
            x[missing] = logprobs[missing].to(x.dtype)

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
            self._metrics[mode]["mask/one_pass"] = [float(self._head is not None)]
        super().log(logs, start_time)


def _loss_mask(batch: dict[str, Any]) -> torch.Tensor:
    """[B, T]: 1 for the tokens that the model sampled and that count; tools and environments wrote the others."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def _given_support(ids: Any, logprobs: Any) -> Support:  # noqa: ANN401  lists or tensors
    """What a rollout_func returned for one completion."""
    try:
        given = Support(torch.as_tensor(ids).int(), torch.as_tensor(logprobs).float())
    except (TypeError, ValueError) as error:  # None, or rows of different lengths
        raise ValueError(_NO_SUPPORT) from error
    if given.ids.dim() != 2 or given.ids.shape != given.logprobs.shape:
        raise ValueError(_NO_SUPPORT)
    return given
