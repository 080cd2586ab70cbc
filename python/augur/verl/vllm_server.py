"""The vLLM server that returns the support with each response.

verl's server asks vLLM for the sampled token's log-prob alone. Augur's agent loop asks for a number of log-probs where
verl's asks with True, and this server then lets vLLM give as many.
"""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from augur import vllm
from augur.verl.recording import add_support, recording, request_under_way


class RecordingEngine:
    """vLLM's engine, with the top K of the requests under way that are recorded, whose answers keep the tokens and
    log-probs; of these verl sees the sampled tokens' alone."""

    def __init__(self, engine: Any) -> None:  # noqa: ANN401  vLLM's AsyncLLM
        self._engine = engine

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._engine, name)

    async def generate(self, *, sampling_params: Any, **kwargs) -> AsyncIterator[Any]:  # noqa: ANN401
        request = request_under_way()
        if request is not None:
            sampling_params.logprobs = request.size
            vllm.ask_flat(sampling_params)
        async for output in self._engine.generate(sampling_params=sampling_params, **kwargs):
            if request is not None and output.outputs:
                response = output.outputs[0]
                request.answer = (response.token_ids, response.logprobs)
                if getattr(output, "finished", False):
                    response.logprobs = _sampled_alone(response.token_ids, response.logprobs)
            yield output


class RecordingServer:
    """Before verl's vLLMHttpServer in the order of bases. With prefill and decode apart, the decoding server
    records."""

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], *args, **kwargs) -> TokenOutput:
        size = sampling_params.get("logprobs")
        if isinstance(size, bool) or not isinstance(size, int):
            return await super().generate(prompt_ids, sampling_params, *args, **kwargs)
        if not isinstance(self.engine, RecordingEngine):
            self.engine = RecordingEngine(self.engine)
        with recording(size) as request:
            result = await super().generate(prompt_ids, sampling_params, *args, **kwargs)
        if request.answer is not None and len(request.answer[0]) == len(result.token_ids):
            await add_support(result, vllm.support_of, *request.answer, size)
        return result


def _sampled_alone(tokens: list[int], logprobs: Any) -> Any:  # noqa: ANN401  vLLM's SampleLogprobs
    """Rows that hold the sampled token's log-prob; flat lists would make an object of each entry when they are read."""
    if not hasattr(logprobs, "start_indices"):
        return logprobs
    values = logprobs.logprobs
    return [{t: SimpleNamespace(logprob=values[i])} for t, i in zip(tokens, logprobs.start_indices, strict=True)]
