"""The SGLang server that returns the support with each response: SGLang gives the top K at generation when asked."""

from collections.abc import AsyncIterator
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from augur import support
from augur.support import Support
from augur.verl.recording import add_support, recording, request_under_way


class RecordingManager:
    """SGLang's tokenizer manager, with the top K of the requests under way that are recorded."""

    def __init__(self, manager: Any) -> None:  # noqa: ANN401  SGLang's TokenizerManager
        self._manager = manager

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._manager, name)

    async def generate_request(self, obj: Any, *args, **kwargs) -> AsyncIterator[dict]:  # noqa: ANN401  GenerateReqInput
        request = request_under_way()
        if request is not None:
            obj.return_logprob, obj.top_logprobs_num = True, request.size
        async for output in self._manager.generate_request(obj, *args, **kwargs):
            if request is not None:
                request.answer = output
            yield output


class RecordingServer:
    """Before verl's SGLangHttpServer in the order of bases. With prefill and decode apart, the decoding server
    records."""

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], *args, **kwargs) -> TokenOutput:
        size = sampling_params.get("logprobs")
        if isinstance(size, bool) or not isinstance(size, int):
            return await super().generate(prompt_ids, sampling_params, *args, **kwargs)
        if not isinstance(self.tokenizer_manager, RecordingManager):
            self.tokenizer_manager = RecordingManager(self.tokenizer_manager)
        with recording(size) as request:
            result = await super().generate(prompt_ids, sampling_params, *args, **kwargs)
        rows = (request.answer or {}).get("meta_info", {}).get("output_top_logprobs")
        if rows and result.log_probs and len(rows) == len(result.token_ids):
            await add_support(result, _support_of, result, rows, size)
        return result


def _support_of(result: TokenOutput, rows: list[list[tuple] | None], size: int) -> Support:
    """rows: for each token its K most likely (log-prob, id, text), the sampled one among them or not."""
    ids = [[entry[1] for entry in row or ()] for row in rows]
    logprobs = [[entry[0] for entry in row or ()] for row in rows]
    return support.from_candidates(list(result.token_ids), list(result.log_probs), ids, logprobs, size)
