"""The masked policy loss over logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from augur.masks import Decision, MaskRule, check_numbers, check_tensors, rule_text

# The order of the sums that the operators return.
_SUMS = (
    "tokens missing outside masked disagree mass_clamped capped divergence ratio cut_ratio log_ratio entropy loss"
).split()


class Metric(NamedTuple):
    """A mean kept as its two sums, so that micro-batches and ranks can be added up before dividing."""

    numerator: float
    denominator: float

    @property
    def value(self) -> float:
        return self.numerator / self.denominator if self.denominator else 0.0

    def __add__(self, other: "Metric") -> "Metric":  # type: ignore[override]
        return Metric(self.numerator + other.numerator, self.denominator + other.denominator)


@dataclass(frozen=True)
class PolicyLoss:
    """A loss with what was decided on the way. Only `loss` carries a gradient."""

    loss: torch.Tensor
    decision: Decision
    logprobs: torch.Tensor
    """[T] log pi of the sampled tokens; -inf where no support was recorded."""
    entropy: torch.Tensor
    """[T]"""
    sums: torch.Tensor
    """The sums behind `metrics`, float64, on the device of the logits."""

    @classmethod
    def of_outputs(cls, out: Sequence[torch.Tensor]) -> "PolicyLoss":
        """Of what the operators return; what follows the sums is for their backward."""
        loss, logprobs, entropy, ratio, divergence, direction, keep, flags, sums, *_ = out
        return cls(loss, Decision(ratio, divergence, direction, keep, flags), logprobs, entropy, sums)

    @property
    def metrics(self) -> dict[str, Metric]:
        """Named after verl's where it has a name. Reading them waits for the device."""
        sums = dict(zip(_SUMS, self.sums.tolist(), strict=True))
        tokens = sums["tokens"]
        named = {
            "actor/pg_loss": Metric(sums["loss"], 1.0),
            "actor/pg_clipfrac": Metric(sums["masked"], tokens),
            "actor/ppo_kl": Metric(sums["log_ratio"], tokens),
            "actor/entropy": Metric(sums["entropy"], tokens),
            "mask/ratio": Metric(sums["ratio"], tokens),
            "mask/ratio_cut": Metric(sums["cut_ratio"], tokens),
            "mask/missing": Metric(sums["missing"], tokens + sums["missing"]),
        }
        for name in ("outside", "masked", "disagree", "divergence", "mass_clamped", "capped"):
            named[f"mask/{name}"] = Metric(sums[name], tokens)
        return named


def token_weights(sequences: torch.Tensor, aggregation: str = "token-mean", horizon: int = 0) -> torch.Tensor:
    """Weights that aggregate token losses: token-mean, token-sum, seq-mean-token-mean, seq-mean-token-sum, or
    seq-mean-token-sum-norm (divided by `horizon`, 0: the longest sequence).

    sequences: [T], the number of the sequence each token belongs to, -1 for a token that does not count.
    """
    return torch.ops.augur.token_weights(sequences, aggregation, horizon)


def named_estimator(reference_kl: str | None, kl_coef: float) -> str:
    if reference_kl is None and kl_coef != 0:
        raise ValueError(
            f"reference_kl: is not given, and kl_coef = {kl_coef} would do nothing; choose k1, k2 or k3 (or none)"
        )
    return reference_kl or "none"


def policy_loss(
    rule: MaskRule | str,
    logits: torch.Tensor,
    support_ids: torch.Tensor,
    support_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor | None = None,
    temperature: float = 1.0,
    *,
    vocab_size: int | None = None,
    softcap: float = 0.0,
    entropy_bonus: float = 0.0,
    reference_logprobs: torch.Tensor | None = None,
    kl_coef: float = 0.0,
    reference_kl: str | None = None,
    validate: bool = True,
) -> PolicyLoss:
    """The masked policy-gradient loss, sum over tokens of -weight * M * r * A, whose gradient in the logits is that
    of -weight * M * r * A * log pi with M and r held fixed.

    logits: [T, V], one row per response token, before division by the temperature. support_ids, support_logprobs:
    [T, M] as recorded by the rollout, column 0 the sampled token, -1 and -inf in unused columns. advantages: [T].
    weights: [T], the aggregation (see token_weights); None is the mean over tokens that have a support. A token of
    weight 0 or without support contributes nothing, whatever its row holds. vocab_size: the real vocabulary when the
    logits are padded. entropy_bonus, and reference_kl ("k1", "k2", "k3" at the sampled token, or "none") times
    kl_coef, enter the same loss. With `validate`, recorded values are checked, which on CUDA waits for the device.
    Without it the caller guarantees them: an id outside the vocabulary reads and writes memory outside the logits, and
    wrong log-probs give wrong decisions.
    """
    check_tensors(
        logits=logits,
        support_ids=support_ids,
        support_logprobs=support_logprobs,
        advantages=advantages,
        weights=weights,
        reference_logprobs=reference_logprobs,
    )
    check_numbers(
        temperature=temperature, vocab_size=vocab_size, softcap=softcap, entropy_bonus=entropy_bonus, kl_coef=kl_coef
    )
    out = torch.ops.augur.policy_loss(
        logits,
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
    )
    return PolicyLoss.of_outputs(out)
