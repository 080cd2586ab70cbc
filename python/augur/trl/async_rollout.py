"""The rollout loop of TRL's asynchronous trainer that sends each token's support along with its log-prob."""

import asyncio
from typing import Any

import numpy as np
import torch
from trl.experimental.async_grpo.async_rollout_worker import RolloutGroup, RolloutSample, _AsyncRolloutLoop

from augur import support
from augur.support import Support
from augur.trl import recorded

_NO_NUMBER = -9999.0  # how vLLM's server writes -inf


class RecordingLoop:
    """Before a rollout loop of TRL's in the order of bases: asks vLLM for the K most likely tokens, too. Runs in the
    worker's own process; a long response has hundreds of thousands of log-probs, so threads read them while other
    requests go on."""

    def __init__(self, *, support_size: int, **kwargs) -> None:
        self._support_size = support_size
        super().__init__(**kwargs)

    async def _post(self, path: str, payload: dict, *args, **kwargs) -> dict:
        if path != "/v1/completions":
            return await super()._post(path, payload, *args, **kwargs)
        asked = {"logprobs": self._support_size, "return_tokens_as_token_ids": True}
        # A model's generation_config.json may hold a min_p, which the server takes unless told otherwise.
        answer = await super()._post(path, {"min_p": 0.0} | payload | asked, *args, **kwargs)
        for choice in answer["choices"]:
            logprobs = await asyncio.to_thread(_attached, choice, self._support_size)
            choice["logprobs"]["token_logprobs"] = logprobs
        return answer

    async def _score_group(self, group: RolloutGroup) -> list[RolloutSample]:
        samples = await super()._score_group(group)
        rows = [row for rows in group.completions_sequences for row in rows]
        for sample, row in zip(samples, rows, strict=True):
            # What TRL did to a token, over any number of turns, it did to the token's log-prob.
            sample.old_log_probs = await asyncio.to_thread(_packed, row.old_log_probs, self._support_size + 1)
        return samples


class AugurRolloutLoop(RecordingLoop, _AsyncRolloutLoop):
    """TRL's own loop, with the support."""


def _attached(choice: dict[str, Any], support_size: int) -> list[recorded.RecordedLogprob | None]:
    return recorded.attach(support_of(choice, support_size))


def _packed(logprobs: list[float | None], columns: int) -> np.ndarray:
    return pack(recorded.collect(logprobs, columns))


def support_of(choice: dict[str, Any], support_size: int) -> Support:
    """[T, M] from a choice of vLLM's /v1/completions with tokens as "token_id:N"."""
    logprobs = choice["logprobs"]
    rows = [row or {} for row in logprobs["top_logprobs"]]
    ids = [[int(name.removeprefix("token_id:")) for name in row] for row in rows]
    values = [[None if x is None or x <= _NO_NUMBER else x for x in row.values()] for row in rows]
    return support.from_ranked(choice["token_ids"], ids, values, support_size)


def pack(recorded_support: Support) -> np.ndarray:
    """[T, 2M], as which the support travels in the place of TRL's log-probs [T]: TRL cuts and joins rows, and looks at
    none. Ids are whole numbers below 2**24, which float32 holds exactly."""
    return torch.cat([recorded_support.logprobs, recorded_support.ids.float()], 1).numpy()


def unpack(rows: torch.Tensor) -> Support:
    """The support [..., M] from rows [..., 2M]."""
    logprobs, ids = rows.chunk(2, -1)
    return Support(ids.int(), logprobs)
