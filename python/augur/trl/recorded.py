"""Log-probs of sampled tokens that remember the support they belong to.

TRL cuts, splices and fills lists of log-probs, one per token, through turns, tools and environments. Whatever it does
to a token it does to the token's log-prob, so the support follows.
"""

from collections.abc import Sequence

import torch

from augur.support import Support, pad_columns


class RecordedLogprob(float):
    __slots__ = ("row", "source")

    source: Support
    """The support of the response that the token was sampled in."""
    row: int

    def __new__(cls, value: float, source: Support, row: int) -> "RecordedLogprob":
        self = super().__new__(cls, value)
        self.source, self.row = source, row
        return self

    def __reduce__(self) -> tuple:  # a float alone would lose the rest
        return RecordedLogprob, (float(self), self.source, self.row)


def attach(source: Support) -> list[RecordedLogprob | None]:
    """One log-prob per token of a response; None for a token without support, as TRL writes one that is no number."""
    values = source.logprobs[:, 0].tolist()
    return [RecordedLogprob(x, source, row) if x > -torch.inf else None for row, x in enumerate(values)]


def unwrapped(logprobs: Sequence) -> list[float | None]:
    """One log-prob per token, also where each is alone in a list, as TRL's VLLMGeneration gives them."""
    return [x[0] if isinstance(x, (list, tuple)) and len(x) == 1 else x for x in logprobs]


def collect(logprobs: Sequence[float | None], columns: int) -> Support:
    """The support [T, columns] of a response from its log-probs; tokens that nobody sampled have none."""
    ids = torch.full((len(logprobs), columns), -1, dtype=torch.int32)
    values = torch.full((len(logprobs), columns), -torch.inf)
    start = 0
    while start < len(logprobs):
        first, end = logprobs[start], start + 1
        if isinstance(first, RecordedLogprob):
            while end < len(logprobs) and _follows(logprobs[end], first, end - start):
                end += 1
            part = Support(*(x[first.row : first.row + end - start] for x in first.source))
            ids[start:end], values[start:end] = pad_columns(part, columns)
        start = end
    return Support(ids, values)


def _follows(value: float | None, first: RecordedLogprob, distance: int) -> bool:
    return isinstance(value, RecordedLogprob) and value.source is first.source and value.row == first.row + distance
