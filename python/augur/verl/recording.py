"""What the rollout's servers gave, call by call, and its place in the response."""

import asyncio
import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from augur.support import Support, pad_columns

_NO_VERSION = -1


@dataclass
class Call:
    """One request to a server: a turn, or what a weight sync left of one."""

    prompt_ids: list[int]
    token_ids: list[int]
    support: Support | None  # [T, M]
    version: int | None  # of the weights


class CallRecorder:
    """Asks every server that a client reaches for the top K, and keeps what each call brought.

    It stands between the client and the servers' handles, below what a client makes of several calls: verl's
    asynchronous client resumes a response that a weight sync has cut, and returns the tokens and log-probs alone.
    """

    def __init__(self, support_size: int) -> None:
        self._support_size = support_size
        self.calls: list[Call] = []

    def wrap(self, client: LLMServerClient) -> LLMServerClient:
        """A client that records here; the given one is left as it is."""
        recording = copy.copy(client)
        acquire_server = recording._acquire_server

        async def acquire_and_record(*args, **kwargs) -> tuple[str, Any]:
            server_id, server = await acquire_server(*args, **kwargs)
            return server_id, _Handle(server, self)

        recording._acquire_server = acquire_and_record
        return recording

    async def generate(self, server: Any, prompt_ids: list[int], sampling_params: dict, **kwargs) -> TokenOutput:  # noqa: ANN401
        params = {**sampling_params, "logprobs": self._support_size}  # the recording servers' cue
        output = await server.generate.remote(prompt_ids=prompt_ids, sampling_params=params, **kwargs)
        ids, logprobs = (output.extra_fields.pop(name, None) for name in ("support_ids", "support_logprobs"))
        recorded = None
        if ids is not None and _fit(torch.tensor(ids)[:, 0], output.token_ids):
            recorded = pad_columns(Support(torch.tensor(ids), torch.tensor(logprobs)), self._support_size + 1)
        elif output.token_ids:
            _note_missing(_NO_LOGPROBS if ids is None else _OTHER_TOKENS)
        version = output.extra_fields.get("global_steps")
        self.calls.append(Call(list(prompt_ids), list(output.token_ids), recorded, version))
        return output


def _fit(recorded: torch.Tensor, tokens: list[int]) -> bool:
    """Whether the sampled tokens of a support, -1 where there is none, are those of the answer."""
    sampled = torch.tensor(list(tokens))
    return recorded.shape == sampled.shape and bool(((recorded == sampled) | (recorded < 0)).all())


class _Handle:
    """A server's actor handle whose generate.remote records; the rest is the handle's own."""

    def __init__(self, server: Any, recorder: CallRecorder) -> None:  # noqa: ANN401  a Ray actor handle
        self._server, self._recorder = server, recorder

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._server, name)

    @property
    def generate(self) -> "_Handle":
        return self

    async def remote(self, **kwargs) -> TokenOutput:
        return await self._recorder.generate(self._server, **kwargs)


@dataclass
class Request:
    """In a server: a request under way."""

    size: int  # how many log-probs it asks for
    answer: Any = None  # what the engine gave


# Found by the task that serves it: under full_determinism, requests at the same time have the same id.
_request: ContextVar[Request | None] = ContextVar("augur_request", default=None)


def request_under_way() -> Request | None:
    return _request.get()


@contextmanager
def recording(size: int) -> Iterator[Request]:
    """Inside, request_under_way() is the one given."""
    request = Request(size)
    token = _request.set(request)
    try:
        yield request
    finally:
        _request.reset(token)


async def add_support(result: TokenOutput, build: Callable[..., Support], *args) -> None:
    """In a server: puts the support that `build` makes into the result, in a thread, because a long response has
    hundreds of thousands of log-probs and other requests wait for the loop. verl's trainer would swallow an error, so
    the tokens then stay without support, which the agent loop tells."""
    try:
        recorded = await asyncio.to_thread(build, *args)
    except (ValueError, TypeError) as error:
        logging.getLogger("augur").error(f"support: {len(result.token_ids)} tokens stay without: {error}")
        return
    result.extra_fields["support_ids"] = recorded.ids.numpy()
    result.extra_fields["support_logprobs"] = recorded.logprobs.numpy()


def place(output: AgentLoopOutput, calls: list[Call], columns: int) -> tuple[Support, list[int]]:
    """The support of the whole sequence [P + R, columns], row t of token t + 1 as verl has it for top-K log-probs, and
    the version of the weights for each response token, -1 where it is unknown or nobody sampled the token.

    A call's tokens lie behind the prompt it was given. Tokens that an agent loop has cut away, or put there itself,
    find no match and have no support.
    """
    sequence = [*output.prompt_ids, *output.response_ids]
    sampled = [0] * len(output.prompt_ids) + list(output.response_mask)
    ids = torch.full((len(sequence), columns), -1, dtype=torch.int32)
    logprobs = torch.full((len(sequence), columns), -torch.inf)
    versions = [_NO_VERSION] * len(sequence)
    for call in calls:
        first = len(call.prompt_ids)
        if first == 0 or sequence[:first] != call.prompt_ids:
            continue
        count = _common_prefix(call.token_ids, sequence[first : first + len(call.token_ids)])
        chosen = torch.tensor(sampled[first : first + count], dtype=torch.bool)
        if call.support is not None:
            rows = slice(first - 1, first - 1 + count)
            ids[rows][chosen] = call.support.ids[:count][chosen]
            logprobs[rows][chosen] = call.support.logprobs[:count][chosen]
        if call.version is not None:
            versions[first : first + count] = [
                call.version if x else _NO_VERSION for x in sampled[first : first + count]
            ]
    return Support(ids, logprobs), versions[len(output.prompt_ids) :]


def _common_prefix(a: list[int], b: list[int]) -> int:
    if a == b:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


_NO_LOGPROBS = (
    "no top-K log-probs, so its tokens take no part in the loss; see that `pip show augur-rl` finds the package on "
    "every node and that rollout.name is vllm or sglang"
)
_OTHER_TOKENS = (
    "log-probs of other tokens than it returned, so these take no part in the loss; see that nothing edits responses "
    "inside the server"
)
_noted = False


def _note_missing(what: str) -> None:
    global _noted
    if not _noted:
        _noted = True
        logging.getLogger("augur").error(f"support: a rollout server gave {what}")
