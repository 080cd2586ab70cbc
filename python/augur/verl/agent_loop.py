"""The agent loops that send each response's support along with it."""

from contextvars import ContextVar
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

from augur.verl.config import is_augur, support_size_of
from augur.verl.recording import CallRecorder, place

_FIELDS = ("teacher_ids", "teacher_logprobs", "weight_versions")
# Whether the response under way is for validation. verl tells its worker, not the agent loop.
_validating: ContextVar[bool] = ContextVar("augur_validating", default=False)


class SupportMixin:
    """Before an agent loop in the order of bases: fills teacher_ids and teacher_logprobs, the fields in which verl
    carries top-K log-probs, with the support of what the loop's servers sampled, over any number of turns."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._recording = is_augur(self.config)
        if self._recording:
            self._support_size = support_size_of(self.rollout_config)

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput | list[AgentLoopOutput]:
        if not self._recording:
            return await super().run(sampling_params, **kwargs)
        # A greedy baseline's tokens are no sample of the policy that the trainer compares with.
        trains = sampling_params.get("temperature") == self.rollout_config.temperature and not _validating.get()
        recorder = CallRecorder(self._support_size)
        client = self.server_manager
        if trains:
            self.server_manager = recorder.wrap(client)
        try:
            output = await super().run(sampling_params, **kwargs)
        finally:
            self.server_manager = client
        if _validating.get():
            return output
        for one in output if isinstance(output, list) else [output]:
            support, versions = place(one, recorder.calls, self._support_size + 1)
            one.extra_fields = one.extra_fields | dict(zip(_FIELDS, (*support, versions), strict=True))
        return output


@register("single_turn_agent")
class AugurSingleTurnAgentLoop(SupportMixin, SingleTurnAgentLoop):
    """verl's single_turn_agent, with the support where the loss mode is one of Augur's."""


@register("tool_agent")
class AugurToolAgentLoop(SupportMixin, ToolAgentLoop):
    """verl's tool_agent, with the support of what the model sampled; what tools wrote has none."""


_run_agent_loop = AgentLoopWorker._run_agent_loop
_compute_score = AgentLoopWorker._compute_score


# At the module's level, so that Ray sends a worker's class with this function's name: it cannot send a ContextVar.
async def _tell_and_run(self: AgentLoopWorker, sampling_params: dict, trajectory: dict, **kwargs) -> Any:  # noqa: ANN401
    token = _validating.set(bool(trajectory["validate"]))
    try:
        return await _run_agent_loop(self, sampling_params, trajectory, **kwargs)
    finally:
        _validating.reset(token)


async def _score_without_support(self: AgentLoopWorker, outputs: list[AgentLoopOutput], *args, **kwargs) -> Any:  # noqa: ANN401
    kept = [{name: one.extra_fields.pop(name) for name in _FIELDS if name in one.extra_fields} for one in outputs]
    try:
        return await _compute_score(self, outputs, *args, **kwargs)
    finally:
        for one, fields in zip(outputs, kept, strict=True):
            one.extra_fields.update(fields)


def wrap_worker() -> None:
    """From now on agent loops can tell whether their response is for validation, and reward functions, to which verl
    sends a response's extra fields, are spared the support."""
    AgentLoopWorker._run_agent_loop = _tell_and_run
    AgentLoopWorker._compute_score = _score_without_support
