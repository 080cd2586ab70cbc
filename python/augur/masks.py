"""Mask rules and token decisions."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch

from augur import _library  # noqa: F401  registers torch.ops.augur


@dataclass(frozen=True)
class MaskRule:
    """Which tokens are outside the trust region, and which updates point outward.

    A token is masked iff it is outside and the update points outward. Unknown names and thresholds that are not
    positive numbers raise ValueError.
    """

    proximity: str = "kl"
    """What measures the distance: "none", "ratio" (the window of clip_low and clip_high), "kl" or "tv"."""
    direction: str = "predicted"
    """What tells outward: "ratio" (A (r - 1) > 0) or "predicted" (A times the divergence's first-order change)."""
    support: str = "topk"
    """Over which atoms the divergence is taken: "topk" (the recorded support and a tail) or "binary"."""
    tail: str = "aggregated"
    """How the tail enters the prediction: "aggregated", "uniform" or "exact"."""
    delta: float = 0.15
    """Tokens with a divergence above this are outside; 0.15 suits top-K KL, 0.05 is tight."""
    action: str = "drop"
    """What a masked token contributes: "drop" nothing, or "restore" the gradient that pulls it back."""
    delta_negative: float | None = None
    """The threshold for negative advantages; None takes delta."""
    clip_low: float = 0.2
    """Lower half-width of the ratio window."""
    clip_high: float = 0.28
    """Upper half-width of the ratio window."""
    ratio_cap: float | None = None
    """The ratio is cut to this in the loss and gradient, never in the decision; None leaves it uncut."""
    restore_strength: float = 1.0
    """The factor c of the restoring gradient c |w| dD."""

    def __post_init__(self) -> None:
        for name in ("delta_negative", "ratio_cap"):
            if getattr(self, name) == 0:
                raise ValueError(f"mask.{name}: 0 is not a finite number above 0; leave it out for none")
        words = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) is not None]
        # Kept, and checked, once: building it inside a compiled function would break the graph.
        object.__setattr__(self, "_text", torch.ops.augur.format_rule(" ".join(words)))

    @classmethod
    def preset(cls, name: str) -> "MaskRule":
        """The rule of that name, e.g. "predictive-kl-aggregated"; `presets()` lists them."""
        text = torch.ops.augur.format_rule(name)
        values: dict = dict(word.split("=", 1) for word in text.split())
        for field in fields(cls):
            if field.type is not str and field.type != "str":
                values[field.name] = float(values[field.name])
        for optional in ("delta_negative", "ratio_cap"):
            values[optional] = values[optional] or None
        return cls(**values)

    @staticmethod
    def presets() -> list[str]:
        return torch.ops.augur.preset_names()

    @property
    def text(self) -> str:
        """The rule as the operators and configuration files write it."""
        return self._text  # type: ignore[attr-defined]


class Decision(NamedTuple):
    """What the mask found for each token."""

    ratio: torch.Tensor
    """pi / mu of the sampled token."""
    divergence: torch.Tensor
    """What proximity compares with delta: the divergence, |ratio - 1| for a ratio window, 0 for no mask."""
    direction: torch.Tensor
    """ratio - 1, or the predicted change of the divergence per unit step; outward when its product with A is > 0."""
    keep: torch.Tensor
    """bool: the token's gradient passes."""
    flags: torch.Tensor
    """uint8 bits: 1 keep, 2 outside, 4 outward, 8 criteria disagree, 16 mass above 1, 32 no support, 64 ratio cut."""

    @property
    def outside(self) -> torch.Tensor:
        return self.flags.bitwise_and(2).bool()

    @property
    def disagree(self) -> torch.Tensor:
        """Outside tokens on which the ratio and the prediction would decide differently."""
        return self.flags.bitwise_and(8).bool()


def rule_text(rule: MaskRule | str) -> str:
    """What the operators take: a rule's text, or a preset's name as it is."""
    return rule if isinstance(rule, str) else rule.text


def check_same_device(**tensors: torch.Tensor | None) -> None:
    """The operators check this, too, but a tensor without data (device meta) would not reach their check."""
    present = [(name, tensor.device) for name, tensor in tensors.items() if tensor is not None]
    first, device = present[0]
    for name, other in present:
        if other != device:
            raise ValueError(f"{name}: is on {other} while {first} is on {device}; move both to the same device")


def decide(
    rule: MaskRule | str,
    behaviour: torch.Tensor,
    policy: torch.Tensor,
    advantages: torch.Tensor,
    vocab_size: int,
    tail_square: torch.Tensor | None = None,
    *,
    validate: bool = True,
) -> Decision:
    """Decides for each token whether its update may pass.

    behaviour, policy: [T, M] log-probs over the support at the sampling temperature; column 0 is the sampled token,
    unused columns of `behaviour` hold -inf. advantages: [T]. tail_square: [T], the policy's sum of squared
    probabilities outside the support, needed by the exact tail. A token whose column 0 is -inf has no support: it
    is not kept. With `validate`, recorded values are checked, which on CUDA waits for the device.
    """
    check_same_device(behaviour=behaviour, policy=policy, advantages=advantages, tail_square=tail_square)
    return Decision(
        *torch.ops.augur.decide(behaviour, policy, advantages, vocab_size, tail_square, rule_text(rule), validate)
    )
