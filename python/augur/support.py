"""The recorded support: building it from what a generation engine gives, and reading the policy's log-probs at it.

A support is a pair of tensors, ids int32 [..., M] and log-probs float32 [..., M]: column 0 is the sampled token, the
rest are the K most likely others in falling order; unused columns hold -1 and -inf. A token whose column 0 is unused
has no support.
"""

from itertools import chain
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from augur.loss import Metric
from augur.masks import Decision

_GATHER_BYTES = 64 << 20  # rows of the head held at a time


class Support(NamedTuple):
    ids: torch.Tensor
    """int32 [..., M]"""
    logprobs: torch.Tensor
    """float32 [..., M]"""


def arrange(
    tokens: torch.Tensor, token_logprobs: torch.Tensor, ids: torch.Tensor, logprobs: torch.Tensor, support_size: int
) -> Support:
    """The support of sampled tokens [N] with candidates [N, C] in any order, the sampled one among them or not.

    Candidates without a finite log-prob are left out; a sampled token without one has no support.
    """
    out = (ids == tokens[:, None]) | ~torch.isfinite(logprobs)
    others, order = logprobs.float().masked_fill(out, -torch.inf).sort(dim=1, descending=True, stable=True)
    other_ids = ids.gather(1, order).masked_fill(others == -torch.inf, -1)
    missing = ~torch.isfinite(token_logprobs)[:, None]
    all_ids = torch.cat([tokens[:, None], other_ids], 1)[:, : support_size + 1].masked_fill(missing, -1)
    all_logprobs = torch.cat([token_logprobs[:, None].float(), others], 1)[:, : support_size + 1]
    return pad_columns(Support(all_ids.int(), all_logprobs.masked_fill(missing, -torch.inf)), support_size + 1)


def pad_columns(support: Support, columns: int) -> Support:
    unused = columns - support.ids.shape[-1]
    if unused <= 0:
        return support
    return Support(
        torch.nn.functional.pad(support.ids, (0, unused), value=-1),
        torch.nn.functional.pad(support.logprobs, (0, unused), value=-torch.inf),
    )


def from_ranked(
    tokens: list[int], ids: list[list[int]], logprobs: list[list[float | None]], support_size: int
) -> Support:
    """The support of one response from the ragged rows an inference server returns: for each token its K or K+1
    candidates, the sampled one among them; None stands for a log-prob that is not a number."""
    padded_ids, padded = _padded(len(tokens), ids, logprobs)
    sampled = torch.tensor(tokens, dtype=torch.int64)
    match = padded_ids == sampled[:, None]
    token_logprobs = torch.where(match, padded, 0).sum(1).masked_fill(~match.any(1), torch.nan)
    return arrange(sampled, token_logprobs, padded_ids, padded, support_size)


def from_candidates(
    tokens: list[int],
    token_logprobs: list[float],
    ids: list[list[int]],
    logprobs: list[list[float | None]],
    support_size: int,
) -> Support:
    """As from_ranked, from a server that gives the sampled token's log-prob apart from the candidates."""
    return arrange(
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(token_logprobs, dtype=torch.float32),
        *_padded(len(tokens), ids, logprobs),
        support_size,
    )


def _padded(count: int, ids: list[list[int]], logprobs: list[list[float | None]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ragged rows as tensors [count, C], filled with -1 and -inf."""
    if not count == len(ids) == len(logprobs):
        raise ValueError(
            f"support: {count} tokens came with {len(ids)} rows of ids and {len(logprobs)} rows of log-probs; "
            "an inference server must give one row per token"
        )
    lengths = torch.tensor([len(row) for row in ids], dtype=torch.int64)
    used = torch.arange(int(lengths.max()) if count else 0) < lengths[:, None]
    padded_ids = torch.full(used.shape, -1, dtype=torch.int64)
    padded = torch.full(used.shape, -torch.inf)
    padded_ids[used] = torch.tensor(list(chain.from_iterable(ids)), dtype=torch.int64)
    values = [torch.nan if x is None else x for x in chain.from_iterable(logprobs)]
    padded[used] = torch.tensor(values, dtype=torch.float32)
    return padded_ids, padded


class SupportRecorder:
    """A logits processor for transformers' generate that records the support and changes nothing.

    Custom processors run before the temperature, so it is applied here. One [B, V] table of log-probs is held, because
    the token sampled from it is only seen with the next call.
    """

    def __init__(self, support_size: int, temperature: float) -> None:
        self._support_size, self._temperature = support_size, temperature
        self._steps: list[Support] = []
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._last is not None:
            self._take(input_ids[:, -1])
        self._last = torch.log_softmax(scores.float() / self._temperature, -1)
        return scores

    def _take(self, tokens: torch.Tensor) -> None:
        top = self._last.topk(min(self._support_size, self._last.shape[1]))
        sampled = self._last.gather(1, tokens[:, None])[:, 0]
        self._steps.append(arrange(tokens, sampled, top.indices, top.values, self._support_size))

    def finish(self, last_tokens: torch.Tensor) -> Support:
        """[B, T, M]; last_tokens: [B], those sampled after the last call."""
        self._take(last_tokens)
        ids, logprobs = zip(*self._steps, strict=True)
        self._steps, self._last = [], None
        return Support(torch.stack(ids, 1), torch.stack(logprobs, 1))


def pad_responses(responses: list[Support], length: int) -> Support:
    """[B, length, M] from responses [T_i, M], padded on the right with tokens that have no support."""

    def pad(x: torch.Tensor, value: float) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, 0, 0, length - len(x)), value=value)

    return Support(
        torch.stack([pad(r.ids, -1) for r in responses]),
        torch.stack([pad(r.logprobs, -torch.inf) for r in responses]),
    )


def support_logits(
    hidden: torch.Tensor, head_weight: torch.Tensor, bias: torch.Tensor | None, ids: torch.Tensor
) -> torch.Tensor:
    """The logits of the support alone, float32 [N, M], from hidden states [N, d] and M rows of the head [V, d] each.

    They are rounded to the type of `hidden`, as a product with the whole head rounds them: only then do differences
    to a log-sum-exp taken over that product stay exact.
    """
    ids = ids.clamp(min=0).long()
    n, m = ids.shape
    chunk = max(1, _GATHER_BYTES // max(1, m * hidden.shape[1] * head_weight.element_size()))
    out = torch.empty(n, m, dtype=torch.float32, device=hidden.device)
    for start in range(0, n, chunk):
        part = slice(start, start + chunk)
        rows = head_weight[ids[part]].to(hidden.dtype)
        z = torch.bmm(rows, hidden[part, :, None])[:, :, 0]
        out[part] = z if bias is None else z + bias[ids[part]].to(hidden.dtype)
    return out


class VocabShard(NamedTuple):
    """The part of the vocabulary whose logits a rank holds: those from `start` on, as many as its logits have columns.
    Columns from `vocab_size` on are padding."""

    group: ProcessGroup
    start: int
    vocab_size: int


def read_logits(
    logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, with_square: bool, shard: VocabShard | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Where the logits [n, V] exist: the policy's log-probs at the support [N, M] of the rows [N] and, asked for, the
    sum of squared probabilities outside it [N]; float32. With `shard`, of all ranks of its group, each with its part of
    the columns, and the same on each."""
    policy = torch.empty(ids.shape, dtype=torch.float32, device=logits.device)
    square = torch.empty(len(rows), dtype=torch.float32, device=logits.device) if with_square else None
    chunk = max(1, _GATHER_BYTES // (4 * logits.shape[1]))
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        policy[part], sums = _read_rows(logits[rows[part]].float(), ids[part].long(), with_square, shard)
        if square is not None:
            square[part] = sums
    return policy, square


def _read_rows(
    z: torch.Tensor, ids: torch.Tensor, with_square: bool, shard: VocabShard | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    start, count = 0, z.shape[1]
    if shard is not None:
        start = shard.start
        z[:, max(0, shard.vocab_size - start) :] = -torch.inf
    largest = z.amax(1, keepdim=True)
    if shard is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, shard.group)
    z = torch.nn.functional.pad(z - largest, (0, 1))  # a column more, for the ids that this rank does not hold
    here = (ids >= start) & (ids < start + count)
    column = torch.where(here, ids - start, count)
    weights = z.exp()
    weights[:, count] = 0
    sums = [z.gather(1, column), weights.sum(1, keepdim=True)]
    if with_square:
        # Over the others alone: a difference of sums would lose the digits that matter.
        sums.append(weights.scatter_(1, column, 0).square_().sum(1, keepdim=True))
    total = torch.cat(sums, 1)
    if shard is not None:
        dist.all_reduce(total, dist.ReduceOp.SUM, shard.group)
    m = ids.shape[1]
    policy = total[:, :m] - total[:, m : m + 1].log()
    return policy, total[:, m + 1] / total[:, m] ** 2 if with_square else None


def tail_square(
    log_square_sum: torch.Tensor, policy: torch.Tensor, used: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    """S, the sum of squared probabilities outside the support, from that over the vocabulary.

    The difference loses all its digits where the support holds nearly all the mass, so it is kept between the least
    and the greatest value that a tail of this mass can have.
    """
    pi = policy.double().exp().masked_fill(~used, 0)
    tail = (1 - pi.sum(1)).clamp(min=0)
    least = tail**2 / (vocab_size - used.sum(1)).clamp(min=1)
    return torch.minimum(torch.maximum(log_square_sum.double().exp() - (pi**2).sum(1), least), tail**2)


_COUNTS = {"outside": 2, "disagree": 8, "mass_clamped": 16, "capped": 64}
METRIC_NAMES = ("tokens", "missing", "masked", "divergence", "ratio", *_COUNTS)


def mask_sums(decision: Decision) -> torch.Tensor:
    """The sums behind the mask/* metrics, float64 in the order of METRIC_NAMES: they add up over micro-batches and
    ranks."""
    missing = decision.flags.bitwise_and(32).bool()
    seen = ~missing

    def total(x: torch.Tensor) -> torch.Tensor:
        return x.double().masked_fill(missing, 0).sum()

    sums = [seen.sum(), missing.sum(), total(~decision.keep), total(decision.divergence), total(decision.ratio)]
    sums += [total(decision.flags.bitwise_and(bit).bool()) for bit in _COUNTS.values()]
    return torch.stack([x.double() for x in sums])


def mask_metrics(sums: torch.Tensor) -> dict[str, Metric]:
    """The metrics of docs/masks.md from mask_sums."""
    named = dict(zip(METRIC_NAMES, sums.tolist(), strict=True))
    tokens, missing = named.pop("tokens"), named.pop("missing")
    metrics = {f"mask/{name}": Metric(value, tokens) for name, value in named.items()}
    return metrics | {"mask/missing": Metric(missing, tokens + missing)}
