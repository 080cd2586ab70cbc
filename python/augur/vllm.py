"""The support from vLLM's answers, for the adapters that hold vLLM's own objects."""

from typing import Any

import numpy as np
import torch

from augur import support
from augur.support import Support


def ask_flat(sampling_params: Any) -> None:  # noqa: ANN401  vLLM's SamplingParams
    """Log-probs in a few flat lists instead of an object each, and no text, which vLLM would look up for each
    candidate. Strings to stop at need the text."""
    if hasattr(sampling_params, "flat_logprobs"):
        sampling_params.flat_logprobs = True
    if hasattr(sampling_params, "detokenize") and not getattr(sampling_params, "stop", None):
        sampling_params.detokenize = False


def support_of(tokens: list[int], logprobs: Any, support_size: int) -> Support:  # noqa: ANN401  vLLM's SampleLogprobs
    """From flat lists, or from one dictionary per token."""
    if hasattr(logprobs, "start_indices"):
        return _from_flat(tokens, logprobs, support_size)
    ids = [list(row) for row in logprobs]
    values = [[entry.logprob for entry in row.values()] for row in logprobs]
    return support.from_ranked(list(tokens), ids, values, support_size)


def _from_flat(tokens: list[int], flat: Any, support_size: int) -> Support:  # noqa: ANN401  vLLM's FlatLogprobs
    """The entries of a position are the sampled token's and the top K, the sampled one perhaps once more."""
    starts, ends = np.asarray(flat.start_indices, np.int64), np.asarray(flat.end_indices, np.int64)
    if len(starts) != len(tokens):
        raise ValueError(f"support: vLLM gave {len(tokens)} tokens and log-probs for {len(starts)}")
    ids, values = np.asarray(flat.token_ids, np.int64), np.asarray(flat.logprobs, np.float32)
    sampled = torch.tensor(list(tokens), dtype=torch.int64)
    if len(tokens) == 0 or len(ids) == 0:
        none = torch.full((len(tokens),), torch.nan)
        return support.arrange(sampled, none, sampled[:, None], none[:, None], support_size)
    place = starts[:, None] + np.arange((ends - starts).max())
    used = place < ends[:, None]
    place = np.where(used, place, 0)
    padded_ids = torch.from_numpy(np.where(used, ids[place], -1))
    padded = torch.from_numpy(np.where(used, values[place], -np.inf).astype(np.float32))
    own = torch.where(padded_ids[:, 0] == sampled, padded[:, 0], torch.nan)
    return support.arrange(sampled, own, padded_ids, padded, support_size)
