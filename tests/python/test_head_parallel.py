"""linear_policy_loss with the head's rows spread over Gloo processes, against one process that has them all."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import augur
from augur import MaskRule
from mask_data import make_head_batch
from ranks import end_rank

RULES = [
    MaskRule.preset("none"),
    MaskRule(),
    MaskRule(tail="uniform"),
    MaskRule(proximity="tv", tail="exact"),
]
OPTIONS = [
    {},
    {"temperature": 0.7, "softcap": 6.0, "entropy_bonus": 0.2, "chunk": 16},
    {"reference_kl": "k3", "kl_coef": 0.3, "chunk": 7},
]


def cases(vocab, dtype):
    """Every rule and set of options, over a vocabulary with `vocab` real rows."""
    for seed, options in enumerate(OPTIONS):
        hidden, weight, bias, recorded = make_head_batch(vocab=vocab, k=min(8, vocab - 1), seed=seed, dtype=dtype)
        if "reference_kl" in options:
            options = {**options, "reference_logprobs": recorded[1][:, 0] - 0.2}
        for rule in RULES:
            yield rule, hidden, weight, bias, recorded, options


def run(rule, hidden, weight, bias, recorded, options):
    h, w, b = (x.detach().clone().requires_grad_() for x in (hidden, weight, bias))
    out = augur.linear_policy_loss(rule, h, w, *recorded, bias=b, **options)
    (2 * out.loss).backward()
    seen = [out.loss.detach(), out.logprobs, out.entropy, out.sums, *out.decision]
    return seen, (h.grad, w.grad, b.grad)


def check_shard(start, stop, padded, group, tolerance, rule, hidden, weight, bias, recorded, options):
    """This rank has rows [start, stop) of a head padded to `padded` rows."""
    vocab, dtype = len(weight), weight.dtype
    expected, (dh, dw, db) = run(rule, hidden, weight, bias, recorded, options)
    rows = torch.cat([weight, torch.full((padded - vocab, weight.shape[1]), torch.nan, dtype=dtype)])
    entries = torch.cat([bias, torch.full((padded - vocab,), torch.nan, dtype=dtype)])
    spread = {**options, "group": group, "vocab_start": start, "vocab_size": vocab}
    seen, (sh, sw, sb) = run(rule, hidden, rows[start:stop], entries[start:stop], recorded, spread)
    for ours, theirs in zip(seen, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    held = slice(start, min(stop, vocab))
    real = max(held.stop - start, 0)
    for ours, theirs in ((sh, dh), (sw[:real], dw[held]), (sb[:real], db[held])):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert torch.all(sw[real:] == 0) and torch.all(sb[real:] == 0)


def check_rank(rank, ranks, store, vocab, padded):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    share = -(-padded // ranks)
    start, stop = min(rank * share, padded), min((rank + 1) * share, padded)
    group = dist.group.WORLD if rank % 2 else dist.group.WORLD.group_name  # either form
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-5)):
        for case in cases(vocab, dtype):
            check_shard(start, stop, padded, group, tolerance, *case)
    if rank == 0:
        check_messages(dist.group.WORLD.group_name, *next(cases(vocab, torch.float32))[1:5])
    end_rank()


def check_messages(group, hidden, weight, bias, recorded):
    for changes, message in [
        ({"vocab_start": 0}, "vocab_size: is 0 for a head spread over a group"),
        ({"vocab_start": -1, "vocab_size": 9}, "vocab_start: is -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            augur.linear_policy_loss("none", hidden, weight, *recorded, bias=bias, group=group, **changes)


def check_many_rows(rank, ranks, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    hidden, weight, bias, recorded = make_head_batch(tokens=200, width=4, vocab=150_000, dtype=torch.float32)
    bounds = [0, 140_000, 150_000]
    shard = slice(bounds[rank], bounds[rank + 1])
    spread = {"group": dist.group.WORLD, "vocab_start": shard.start, "vocab_size": len(weight)}
    seen, _ = run(MaskRule(), hidden, weight[shard], bias[shard], recorded, spread)
    expected, _ = run(MaskRule(), hidden, weight, bias, recorded, {})
    for ours, theirs in zip(seen, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    end_rank()


def test_ranks_with_unequal_parts_take_chunks_of_one_size(tmp_path):
    """The larger part alone would ask for several chunks, the smaller one for one; each chunk has its sums."""
    mp.spawn(check_many_rows, (2, tmp_path / "store"), nprocs=2)


@pytest.mark.parametrize(
    ("ranks", "vocab", "padded"),
    [
        pytest.param(2, 61, 64, id="padded"),
        pytest.param(2, 60, 60, id="even", marks=pytest.mark.slow),
        pytest.param(4, 61, 61, id="uneven", marks=pytest.mark.slow),
        pytest.param(4, 9, 9, id="a rank without rows", marks=pytest.mark.slow),
        pytest.param(4, 50, 64, id="a rank of padding alone", marks=pytest.mark.slow),
    ],
)
def test_ranks_with_parts_of_the_head_agree_with_one_process(ranks, vocab, padded, tmp_path):
    mp.spawn(check_rank, (ranks, tmp_path / "store", vocab, padded), nprocs=ranks)
