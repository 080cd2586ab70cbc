"""The masked policy loss from hidden states and the LM head, without the logits of all tokens."""

import torch
from torch.distributed import ProcessGroup

from augur.loss import PolicyLoss, named_estimator
from augur.masks import MaskRule, check_numbers, check_tensors, rule_text

_ACCUMULATE = ("float32", "parameter")


def linear_policy_loss(
    rule: MaskRule | str,
    hidden: torch.Tensor,
    head_weight: torch.Tensor,
    support_ids: torch.Tensor,
    support_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor | None = None,
    temperature: float = 1.0,
    *,
    bias: torch.Tensor | None = None,
    vocab_size: int | None = None,
    softcap: float = 0.0,
    entropy_bonus: float = 0.0,
    reference_logprobs: torch.Tensor | None = None,
    kl_coef: float = 0.0,
    reference_kl: str | None = None,
    decide_only: bool = False,
    chunk: int | None = None,
    accumulate: str = "float32",
    grad_scale: float = 1.0,
    group: str | ProcessGroup | None = None,
    vocab_start: int | None = None,
    validate: bool = True,
) -> PolicyLoss:
    """policy_loss of the logits hidden @ head_weight.T + bias, in one pass over chunks of tokens.

    hidden: [T, d]; head_weight: [V, d] of the same dtype (bf16, fp16, fp32, fp64); bias: [V]. The gradients of those
    that require one are formed in the forward; backward only scales them. The rest is as for policy_loss; rows of
    the head from vocab_size on are padding.

    decide_only: no gradient, one GEMM instead of three. chunk: tokens per chunk; None chooses it, so that the logits
    held take about 1.2 GiB on CUDA and 96 MiB on the CPU. accumulate: in which type the head's gradient is added up
    over chunks, "float32" or "parameter" (the head's own; less memory). grad_scale: multiplies the gradients, not the
    loss, before they are rounded to 16 bits: 1 / steps of a gradient accumulation, or a loss scale.

    group: the process group (or its name) over which the head's rows are spread. Each rank passes its own rows and
    their part of the bias, with vocab_start the number of the first and vocab_size that of the whole vocabulary; all
    else is the same on every rank, and so are the results.
    """
    if accumulate not in _ACCUMULATE:
        raise ValueError(f"accumulate: unknown type '{accumulate}'; pass 'float32' or 'parameter'")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk: is {chunk}; pass a number of tokens, or leave it out for the default")
    if (group is None) != (vocab_start is None):
        raise ValueError("vocab_start: goes with group; pass both for a head spread over ranks, or neither")
    check_tensors(
        hidden=hidden,
        head_weight=head_weight,
        bias=bias,
        support_ids=support_ids,
        support_logprobs=support_logprobs,
        advantages=advantages,
        weights=weights,
        reference_logprobs=reference_logprobs,
    )
    check_numbers(
        temperature=temperature,
        vocab_size=vocab_size,
        softcap=softcap,
        entropy_bonus=entropy_bonus,
        kl_coef=kl_coef,
        grad_scale=grad_scale,
    )
    group_name = group.group_name if isinstance(group, ProcessGroup) else group
    with torch.set_grad_enabled(torch.is_grad_enabled() and not decide_only):
        out = torch.ops.augur.linear_policy_loss(
            hidden,
            head_weight,
            bias,
            support_ids,
            support_logprobs,
            advantages,
            weights,
            reference_logprobs,
            rule_text(rule),
            temperature,
            vocab_size or 0,
            softcap,
            entropy_bonus,
            kl_coef,
            named_estimator(reference_kl, kl_coef),
            validate,
            chunk or 0,
            accumulate == "float32",
            grad_scale,
            group_name or "",
            vocab_start or 0,
        )
    return PolicyLoss.of_outputs(out)
