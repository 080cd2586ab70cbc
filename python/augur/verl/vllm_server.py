"""The vLLM server that returns the support with each response.

verl's server asks vLLM for the sampled token's log-prob alone. Augur's agent loop asks for a number of log-probs where
verl's asks with True, and this server then lets vLLM give as many.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from augur import support
from augur.support import Support


class RecordingEngine:
    """vLLM's engine, with the top K of the requests listed in `sizes` and the last output of each in `outputs`."""

    def __init__(self, engine: Any) -> None:  # noqa: ANN401  vLLM's AsyncLLM
        self._engine = engine
        self.sizes: dict[str, int] = {}
        self.outputs: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._engine, name)

    async def generate(self, *, sampling_params: Any, request_id: str, **kwargs) -> AsyncIterator[Any]:  # noqa: ANN401
        if request_id in self.sizes:
            sampling_params.logprobs = self.sizes[request_id]
        generator = self._engine.generate(sampling_params=sampling_params, request_id=request_id, **kwargs)
        async for output in generator:
            if request_id in self.sizes:
                self.outputs[request_id] = output
            yield output


class RecordingServer:
    """Before verl's vLLMHttpServer in the order of bases. With prefill and decode apart, the decoding server
    records."""

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, *args, **kwargs
    ) -> TokenOutput:
        size = sampling_params.get("logprobs")
        if isinstance(size, bool) or not isinstance(size, int):
            return await super().generate(prompt_ids, sampling_params, request_id, *args, **kwargs)
        if not isinstance(self.engine, RecordingEngine):
            self.engine = RecordingEngine(self.engine)
        engine = self.engine
        engine.sizes[request_id] = size
        try:
            result = await super().generate(prompt_ids, sampling_params, request_id, *args, **kwargs)
        finally:
            del engine.sizes[request_id]
            output = engine.outputs.pop(request_id, None)
        if output is not None and output.outputs:
            # In a thread: a long response has hundreds of thousands of log-probs, and other requests wait for the loop.
            recorded = await asyncio.to_thread(_support_of, output.outputs[0], size)
            result.extra_fields["support_ids"] = recorded.ids.numpy()
            result.extra_fields["support_logprobs"] = recorded.logprobs.numpy()
        return result


def _support_of(response: Any, size: int) -> Support:  # noqa: ANN401  vLLM's CompletionOutput
    ids = [list(row) for row in response.logprobs]
    logprobs = [[entry.logprob for entry in row.values()] for row in response.logprobs]
    return support.from_ranked(list(response.token_ids), ids, logprobs, size)
