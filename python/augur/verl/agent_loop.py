"""The agent loop that sends each response's support along with it."""

from typing import Any

import torch
from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

from augur import guards, support
from augur.support import Support
from augur.verl.loss import LOSS_MODES

DEFAULT_SUPPORT_SIZE = 20


def is_augur(config: DictConfig) -> bool:
    return config.actor_rollout_ref.actor.policy_loss.get("loss_mode", "vanilla") in LOSS_MODES


def support_size_of(rollout: Any) -> int:  # noqa: ANN401  a DictConfig or verl's RolloutConfig
    """rollout.custom is verl's own free field: +actor_rollout_ref.rollout.custom.augur.support_size=20."""
    custom = rollout.get("custom", None) or {}
    size = (custom.get("augur", None) or {}).get("support_size", DEFAULT_SUPPORT_SIZE)
    guards.check_support_size(size, "actor_rollout_ref.rollout.custom.augur.")
    return size


def check_config(config: DictConfig) -> None:
    """Raises ValueError for a configuration under which the mask would compare the wrong distributions."""
    rollout, where = config.actor_rollout_ref.rollout, "actor_rollout_ref.rollout."
    guards.check_temperature(rollout.temperature, where)
    names = ("top_p", "top_k", "min_p", "repetition_penalty", "do_sample")
    guards.check_sampling({name: rollout.get(name, None) for name in names}, where)
    support_size_of(rollout)
    if not rollout.calculate_log_probs:
        raise ValueError(
            f"{where}calculate_log_probs: is False; the ratio needs the rollout's log-probs; set it to True"
        )
    if rollout.get("logprobs_mode", "processed_logprobs") != "processed_logprobs":
        raise ValueError(
            f"{where}logprobs_mode: is {rollout.logprobs_mode}; log-probs must be those of the sampling temperature; "
            "set it to processed_logprobs"
        )
    correction = config.algorithm.get("rollout_correction", None) or {}
    if not correction.get("bypass_mode", False):
        raise ValueError(
            "algorithm.rollout_correction.bypass_mode: is False, so verl would take the ratio against recomputed "
            "log-probs; the mask needs the rollout's; set it to True"
        )
    for name in ("rollout_is", "rollout_rs"):
        if correction.get(name, None) is not None:
            raise ValueError(
                f"algorithm.rollout_correction.{name}: is {correction.get(name)}; the ratio is already taken against "
                "the rollout's policy; set it to null"
            )
    if config.actor_rollout_ref.model.get("use_fused_kernels", False):
        raise ValueError("actor_rollout_ref.model.use_fused_kernels: hide the logits; set it to False")
    if (config.get("distillation", None) or {}).get("enabled", False):
        raise ValueError("distillation.enabled: distillation uses the fields that carry the support; set it to False")


class SupportMixin:
    """Fills teacher_ids and teacher_logprobs, the fields in which verl carries top-K log-probs, with the support."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._recording = is_augur(self.config)
        if self._recording:
            check_config(self.config)
            self._support_size = support_size_of(self.rollout_config)

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        if not self._recording:
            return await super().run(sampling_params, **kwargs)
        sampling_params = dict(sampling_params)
        # A validation's settings, or a greedy baseline's, are not those that the trainer compares with.
        trains = sampling_params.get("temperature") == self.rollout_config.temperature
        if trains and self.rollout_config.name == "vllm":
            sampling_params["logprobs"] = self._support_size  # RecordingServer's cue
        output = await super().run(sampling_params, **kwargs)
        self._attach(output, await self._support_of(output) if trains else None)
        return output

    async def _support_of(self, output: AgentLoopOutput) -> Support:
        ids, logprobs = (output.extra_fields.pop(name, None) for name in ("support_ids", "support_logprobs"))
        if ids is None:
            return await self._score(output)
        return Support(torch.tensor(ids), torch.tensor(logprobs))

    def _attach(self, output: AgentLoopOutput, recorded: Support | None) -> None:
        """Row t belongs to token t + 1, so the response's first row is the prompt's last."""
        count = len(output.response_ids)
        first, rows = len(output.prompt_ids) - 1, len(output.prompt_ids) + count
        shape = (rows, self._support_size + 1)
        ids, logprobs = torch.full(shape, -1, dtype=torch.int32), torch.full(shape, -torch.inf)
        if recorded is not None:
            ids[first : first + count], logprobs[first : first + count] = (x[:count] for x in recorded)
            sampled = ids[first : first + count, 0]
            if torch.any((sampled >= 0) & (sampled != torch.tensor(output.response_ids))):
                raise ValueError(
                    "support: the recorded tokens are not those of the response; use an agent loop that returns them "
                    "unchanged"
                )
        output.extra_fields |= {"teacher_ids": ids, "teacher_logprobs": logprobs}

    async def _score(self, output: AgentLoopOutput) -> Support:
        """Asks a server that gave no top K for it once more: the log-probs of the response as a prompt. Those have no
        temperature, and are of the weights that the server has by then."""
        fields = output.extra_fields
        if self.rollout_config.temperature != 1.0:
            raise ValueError(
                f"actor_rollout_ref.rollout.temperature: is {self.rollout_config.temperature}; this server gives the "
                "support by scoring the response again, which knows temperature 1 alone; set 1.0, or use vLLM"
            )
        if fields.get("min_global_steps") != fields.get("max_global_steps"):
            raise ValueError(
                "support: the response was sampled from several versions of the weights, so it cannot be scored "
                "again; use vLLM's server without partial rollouts"
            )
        if output.response_logprobs is None:
            raise ValueError(
                "actor_rollout_ref.rollout.calculate_log_probs: must be True; the server gave no log-probs"
            )
        params = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": self._support_size, "logprobs": False}
        scored = await self.server_manager.generate(
            request_id=f"augur-{id(output)}",
            prompt_ids=[*output.prompt_ids, *output.response_ids],
            sampling_params=params,
        )
        ids, logprobs = (scored.extra_fields.get(name) for name in ("prompt_ids", "prompt_logprobs"))
        if ids is None or logprobs is None:
            raise ValueError(
                "support: the server gives neither top-K log-probs nor prompt log-probs; use vLLM or SGLang"
            )
        first, count = len(output.prompt_ids) - 1, len(output.response_ids)
        return support.arrange(
            torch.tensor(output.response_ids),
            torch.tensor(output.response_logprobs),
            torch.as_tensor(ids)[first : first + count].long(),
            torch.as_tensor(logprobs)[first : first + count],
            self._support_size,
        )


@register("single_turn_agent")
class AugurSingleTurnAgentLoop(SupportMixin, SingleTurnAgentLoop):
    """verl's single_turn_agent, with the support where the loss mode is one of Augur's."""


@register("tool_agent")
class AugurToolAgentLoop(ToolAgentLoop):
    """verl's tool_agent, refused where the loss mode is one of Augur's."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if is_augur(self.config):
            raise ValueError(
                "agent loop tool_agent: a response with tool results in it has tokens nobody sampled, and its support "
                "is not carried; use single_turn_agent without tools"
            )
