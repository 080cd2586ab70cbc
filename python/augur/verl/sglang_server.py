"""The SGLang server that returns the support with each response: SGLang gives the top K at generation when asked."""

from collections.abc import AsyncIterator
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from augur import support
from augur.support import Support
from augur.verl.recording import add_support


class RecordingManager:
    """SGLang's tokenizer manager, with the top K of the requests listed in `sizes` and what each brought in
    `outputs`."""

    def __init__(self, manager: Any) -> None:  # noqa: ANN401  SGLang's TokenizerManager
        self._manager = manager
        self.sizes: dict[str, int] = {}
        self.outputs: dict[str, dict] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._manager, name)

    async def generate_request(self, obj: Any, *args, **kwargs) -> AsyncIterator[dict]:  # noqa: ANN401  GenerateReqInput
        recording = obj.rid in self.sizes
        if recording:
            obj.return_logprob, obj.top_logprobs_num = True, self.sizes[obj.rid]
        async for output in self._manager.generate_request(obj, *args, **kwargs):
            if recording:
                self.outputs[obj.rid] = output
            yield output


class RecordingServer:
    """Before verl's SGLangHttpServer in the order of bases. With prefill and decode apart, the decoding server
    records."""

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, *args, **kwargs
    ) -> TokenOutput:
        size = sampling_params.get("logprobs")
        if isinstance(size, bool) or not isinstance(size, int):
            return await super().generate(prompt_ids, sampling_params, request_id, *args, **kwargs)
        if not isinstance(self.tokenizer_manager, RecordingManager):
            self.tokenizer_manager = RecordingManager(self.tokenizer_manager)
        manager = self.tokenizer_manager
        manager.sizes[request_id] = size
        try:
            result = await super().generate(prompt_ids, sampling_params, request_id, *args, **kwargs)
        finally:
            del manager.sizes[request_id]
            output = manager.outputs.pop(request_id, None)
        rows = (output or {}).get("meta_info", {}).get("output_top_logprobs")
        if rows and result.log_probs and len(rows) == len(result.token_ids):
            await add_support(result, _support_of, result, rows, size)
        return result


def _support_of(result: TokenOutput, rows: list[list[tuple] | None], size: int) -> Support:
    """rows: for each token its K most likely (log-prob, id, text), the sampled one among them or not."""
    ids = [[entry[1] for entry in row or ()] for row in rows]
    logprobs = [[entry[0] for entry in row or ()] for row in rows]
    return support.from_candidates(list(result.token_ids), list(result.log_probs), ids, logprobs, size)
