"""The one-pass head against every other way to get its results, in one process.

    PYTHONPATH=python python bench/head.py --device cuda --dtype bfloat16 --tokens 16384 --hidden 2560 --vocab 151936
    PYTHONPATH=python python bench/head.py --sweep --json sweep.jsonl --device cuda --dtype bfloat16

Contestants: the three bare GEMMs (a floor, not a loss), Augur, eager torch, torch.compile, chunks under activation
checkpointing and, where they are installed and a GPU is present, Liger's fused linear cross-entropy and apple's
cut-cross-entropy. The last two yield nothing but the sampled token's log-prob: no entropy, no support, no decision.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

import augur

SWEEP_TOKENS = (1024, 4096, 16384, 65536)
SWEEP_VOCAB = (32768, 65536, 151936, 262144)


def make_inputs(o: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Random weights, and the top of their own distribution as the recorded support."""
    torch.manual_seed(0)
    dtype = getattr(torch, o.dtype)
    hidden = torch.randn(o.tokens, o.hidden, device=o.device).to(dtype)
    weight = (torch.randn(o.vocab, o.hidden, device=o.device) * 3 / o.hidden**0.5).to(dtype)
    ids, logprobs = [], []
    for rows in hidden.split(256):
        top = torch.log_softmax((rows @ weight.T).float(), -1).topk(o.support + 1)
        ids.append(top.indices.int())
        logprobs.append(top.values - 0.01)
    return {
        "hidden": hidden.requires_grad_(),
        "weight": weight.requires_grad_(),
        "ids": torch.cat(ids),
        "logprobs": torch.cat(logprobs),
        "advantages": torch.randn(o.tokens, device=o.device),
    }


def eager_loss(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Predictive KL with the aggregated tail as one writes it in torch, summed over tokens."""
    log_pi = torch.log_softmax((hidden @ weight.T).float(), -1)
    with torch.no_grad():
        entropy = -(log_pi.exp() * log_pi).sum(-1)
    policy = log_pi.gather(1, ids.long())
    mu, pi = logprobs.exp(), policy.detach().exp()
    mu_tail, pi_tail = (1 - mu.sum(1)).clamp(min=0), (1 - pi.sum(1)).clamp(min=1e-38)
    divergence = (mu * (logprobs - policy.detach())).sum(1) + mu_tail * (mu_tail.clamp(min=1e-38) / pi_tail).log()
    change = pi[:, 0] - mu[:, 0] + (pi * (mu - pi)).sum(1) + pi_tail * (mu_tail - pi_tail)
    keep = ~((divergence > 0.15) & (advantages * change > 0)) & (entropy >= 0)
    ratio = (policy[:, 0] - logprobs[:, 0]).exp()
    return -torch.where(keep, ratio * advantages, 0.0).sum()


def contestants(o: argparse.Namespace, x: dict[str, torch.Tensor]) -> dict[str, Callable[[], None]]:
    hidden, weight = x["hidden"], x["weight"]
    recorded = x["ids"], x["logprobs"], x["advantages"]
    half = torch.where(torch.rand_like(x["advantages"]) < 0.5, x["advantages"], 0)

    def backward(loss: torch.Tensor) -> None:
        loss.backward()
        hidden.grad = weight.grad = None

    def gemms() -> None:
        with torch.no_grad():
            logits = hidden @ weight.T
            logits.T @ hidden
            logits @ weight

    def one_gemm() -> None:
        with torch.no_grad():
            hidden @ weight.T

    def ours(advantages: torch.Tensor, **options: bool) -> augur.PolicyLoss:
        return augur.linear_policy_loss(
            "none", hidden, weight, x["ids"], x["logprobs"], advantages, validate=False, chunk=o.chunk, **options
        )

    def chunked() -> None:
        rows = 1024
        parts = zip(hidden.split(rows), *(r.split(rows) for r in recorded), strict=True)
        backward(sum(checkpoint(eager_loss, h, weight, *rest, use_reentrant=False) for h, *rest in parts) / o.tokens)

    found = {
        "three_gemms": gemms,
        "augur": lambda: backward(ours(x["advantages"]).loss),
        "augur_half": lambda: backward(ours(half).loss),
        "one_gemm": one_gemm,
        "decide_only": lambda: ours(x["advantages"], decide_only=True),
    }
    if o.sweep:
        return found
    compiled = torch.compile(eager_loss)
    found["eager"] = lambda: backward(eager_loss(hidden, weight, *recorded) / o.tokens)
    found["compile"] = lambda: backward(compiled(hidden, weight, *recorded) / o.tokens)
    found["checkpoint"] = chunked
    return found | peers(o, x, backward)


def peers(
    o: argparse.Namespace, x: dict[str, torch.Tensor], backward: Callable[[torch.Tensor], None]
) -> dict[str, Callable[[], None]]:
    """Fused cross-entropies; they run as a policy gradient whose advantages are all one."""
    found: dict[str, Callable[[], None]] = {}
    if not o.device.startswith("cuda"):
        return found
    hidden, weight, sampled = x["hidden"], x["weight"], x["ids"][:, 0].long()
    try:
        from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()
        found["liger"] = lambda: backward(liger(weight, hidden, sampled))
    except ImportError:
        pass
    try:
        from cut_cross_entropy import linear_cross_entropy

        found["cut_cross_entropy"] = lambda: backward(linear_cross_entropy(hidden, weight, sampled))
    except ImportError:
        pass
    return found


def peak_mib(device: str, call: Callable[[], None]) -> float:
    """Most GPU memory beyond what was in use before. On the CPU `augur bench head` counts it."""
    if not device.startswith("cuda"):
        return float("nan")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def seconds(device: str, call: Callable[[], None]) -> float:
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def measure(o: argparse.Namespace) -> dict:
    """Every contestant's median milliseconds (in turns), ratio to the bare GEMMs, and peak memory."""
    x = make_inputs(o)
    calls = contestants(o, x)
    peaks, times = {}, {name: [] for name in calls}
    for name in list(calls):
        try:
            calls[name]()  # warm up, compile
            peaks[name] = peak_mib(o.device, calls[name])
        except torch.OutOfMemoryError:
            print(f"  {name}: out of memory")
            del calls[name], times[name]
    for _ in range(o.rounds):
        for name, call in calls.items():
            times[name].append(seconds(o.device, call))
    median = {name: statistics.median(t) for name, t in times.items()}
    element = x["hidden"].element_size()
    result = {key: getattr(o, key) for key in ("device", "dtype", "tokens", "hidden", "vocab", "support", "chunk")}
    for name in calls:
        floor = median["one_gemm" if name in ("one_gemm", "decide_only") else "three_gemms"]
        result[name] = {"ms": median[name] * 1e3, "ratio": median[name] / floor, "peak_mib": peaks[name]}
    gradients = (o.vocab * o.hidden * 4 + o.tokens * o.hidden * element) / 2**20
    result["augur_beyond_gradients_mib"] = peaks["augur"] - gradients
    return result


def show(result: dict) -> None:
    print(", ".join(f"{k} {v}" for k, v in result.items() if not isinstance(v, dict)))
    for name, row in result.items():
        if isinstance(row, dict):
            print(f"  {name:18} {row['ms']:10.2f} ms  {row['ratio']:7.3f} of the GEMMs  {row['peak_mib']:9.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--support", type=int, default=20)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--chunk", type=int, default=None, help="tokens per chunk; left out: the default")
    parser.add_argument("--rounds", type=int, default=5, help="timed calls of each contestant")
    parser.add_argument("--sweep", action="store_true", help="Augur and the GEMMs over T and V, one after the other")
    parser.add_argument("--json", type=Path, help="append one JSON line per measurement to this file")
    o = parser.parse_args()
    shapes = [(o.tokens, o.vocab)]
    if o.sweep:
        shapes = [(t, o.vocab) for t in SWEEP_TOKENS] + [(o.tokens, v) for v in SWEEP_VOCAB]
    for o.tokens, o.vocab in shapes:
        result = measure(o)
        show(result)
        if o.json:
            with o.json.open("a") as file:
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
