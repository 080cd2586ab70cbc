"""Mask rules and token decisions."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from numbers import Integral, Real
from typing import NamedTuple

import torch

from augur import _library  # noqa: F401  registers torch.ops.augur

_FIELDS = json.loads(torch.ops.augur.rule_fields())
# 0 means "none" in the text of a rule; here that is None, too.
_NONE_FOR_ZERO = ("delta_negative", "ratio_cap")


def _declare(entry: dict) -> tuple[str, type, object]:
    """One entry of the library's field list as make_dataclass takes it."""
    name, default = entry["name"], entry["default"]
    if name in _NONE_FOR_ZERO:
        return name, float | None, field(default=None)
    return (name, str, field(default=default)) if entry["choices"] else (name, float, field(default=float(default)))


_RuleFields = make_dataclass("_RuleFields", [_declare(entry) for entry in _FIELDS], frozen=True)


@dataclass(frozen=True)
class MaskRule(_RuleFields):
    """Which tokens are outside the trust region, and which updates point outward.

    A token is masked iff it is outside and the update points outward. Unknown names and numbers out of range raise
    ValueError. The fields are those of the library:

    {fields}
    """

    def __post_init__(self) -> None:
        self._use_none_for_zero()
        for entry in _FIELDS:
            name, value = entry["name"], getattr(self, entry["name"])
            if value is None and name not in _NONE_FOR_ZERO:
                raise ValueError(f"{name}: is None; leave it out for its default, {entry['default']}")
            if isinstance(value, str) and re.search(r"[\s=,]|^$", value):
                raise ValueError(f"{name}: is {value!r}; give one value")
        words = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) is not None]
        # Kept, and checked, once: building it inside a compiled function would break the graph.
        object.__setattr__(self, "_text", torch.ops.augur.format_rule(" ".join(words)))
        for entry in _FIELDS:
            if not entry["choices"] and isinstance(getattr(self, entry["name"]), str):  # as a command line has it
                object.__setattr__(self, entry["name"], float(getattr(self, entry["name"])))
        self._use_none_for_zero()

    def _use_none_for_zero(self) -> None:
        for name in _NONE_FOR_ZERO:
            if getattr(self, name) == 0:
                object.__setattr__(self, name, None)

    @classmethod
    def preset(cls, name: str) -> "MaskRule":
        """The rule of that name, e.g. "predictive-kl-aggregated"; `presets()` lists them. Fields may follow the name:
        "predictive-kl-exact delta=0.05"."""
        text = torch.ops.augur.format_rule(name)
        values: dict = dict(word.split("=", 1) for word in text.split())
        for entry in _FIELDS:
            if not entry["choices"]:
                values[entry["name"]] = float(values[entry["name"]])
        for optional in _NONE_FOR_ZERO:
            values[optional] = values[optional] or None
        return cls(**values)

    @staticmethod
    def presets() -> list[str]:
        return torch.ops.augur.preset_names()

    @property
    def text(self) -> str:
        """The rule as the operators and configuration files write it."""
        return self._text  # type: ignore[attr-defined]


MaskRule.__doc__ = (MaskRule.__doc__ or "").replace(
    "{fields}", "\n    ".join(f"{entry['name']} ({entry['kind']}): {entry['description']}" for entry in _FIELDS)
)


class Decision(NamedTuple):
    """What the mask found for each token."""

    ratio: torch.Tensor
    """pi / mu of the sampled token."""
    divergence: torch.Tensor
    """What proximity compares with delta: the divergence, |ratio - 1| for a ratio window, 0 for no mask."""
    direction: torch.Tensor
    """ratio - 1, the predicted change of the divergence per unit step, or the sign of A where every update counts as
    outward; outward when its product with A is > 0."""
    keep: torch.Tensor
    """bool: the token's gradient passes."""
    flags: torch.Tensor
    """uint8 bits: 1 keep, 2 outside, 4 outward, 8 criteria disagree, 16 mass above 1, 32 no support, 64 ratio cut."""
    coefficient: torch.Tensor | None = None
    """What multiplies A grad log pi of the sampled token: the ratio or the rule's function of it, 0 where the token is
    not kept. None where a loss has decided."""

    @property
    def outside(self) -> torch.Tensor:
        return self.flags.bitwise_and(2).bool()

    @property
    def disagree(self) -> torch.Tensor:
        """Outside tokens on which the ratio and the prediction would decide differently."""
        return self.flags.bitwise_and(8).bool()


def a(name: str) -> str:
    """The name with its article."""
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def rule_text(rule: MaskRule | str) -> str:
    """What the operators take: a rule's text, or a preset's name as it is."""
    if not isinstance(rule, MaskRule | str):
        raise ValueError(f"rule: is {a(type(rule).__name__)}; pass a MaskRule or the name of a preset")
    if isinstance(rule, str) and not rule.strip():
        raise ValueError(f"rule: is {rule!r}; pass a MaskRule or the name of a preset")
    return rule if isinstance(rule, str) else rule.text


def only_masks(rule: MaskRule) -> bool:
    """Whether the rule does no more than drop tokens by what it finds of each: what a loss of another program follows.
    A ratio_cap is apart."""
    return (rule.weight, rule.penalty, rule.scope) == ("ratio", "none", "token") and rule.direction != "second_order"


def check_numbers(**numbers: float | None) -> None:
    """The operators would refuse what is no number in words of torch's."""
    for name, number in numbers.items():
        whole = name == "vocab_size"
        if number is None or isinstance(number, (int, torch.SymInt) if whole else (int, float, torch.SymFloat)):
            continue
        if isinstance(number, Integral if whole else Real):  # numpy's
            continue
        if isinstance(number, torch.Tensor) and number.dim() == 0 and not (whole and number.is_floating_point()):
            continue
        raise ValueError(f"{name}: is {a(type(number).__name__)}; pass a {'whole ' if whole else ''}number")


_OPTIONAL = ("tail_square", "tail_cube", "weights", "bias", "reference_logprobs")


def check_tensors(**tensors: torch.Tensor | None) -> None:
    """That they are tensors, on one device. The operators check this, too, but a tensor without data (device meta)
    would not reach their check."""
    for name, tensor in tensors.items():
        if not (isinstance(tensor, torch.Tensor) or (tensor is None and name in _OPTIONAL)):
            raise ValueError(f"{name}: is {a(type(tensor).__name__)}; pass a torch.Tensor")
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
    tail_cube: torch.Tensor | None = None,
    lengths: torch.Tensor | Sequence[int] | None = None,
    *,
    validate: bool = True,
) -> Decision:
    """Decides for each token whether its update may pass, and how large it is.

    behaviour, policy: [T, M] log-probs over the support at the sampling temperature; column 0 is the sampled token,
    unused columns of `behaviour` hold -inf. advantages: [T]. tail_square: [T], the policy's sum of squared
    probabilities outside the support, needed by the exact tail; tail_cube: that of the cubes, needed by
    predictive-kl-second-order. lengths: the number of tokens of each response, in order, needed by rules with a
    statistic of the response (gspo, trm, cppo, ...), which are decided on the CPU. A token whose column 0 is -inf has
    no support: it is not kept. With `validate`, recorded values are checked, which on CUDA waits for the device.
    Without it, wrong values give wrong decisions.
    """
    if lengths is not None and not isinstance(lengths, torch.Tensor):
        lengths = torch.as_tensor(lengths)
    check_tensors(
        behaviour=behaviour, policy=policy, advantages=advantages, tail_square=tail_square, tail_cube=tail_cube
    )
    check_numbers(vocab_size=vocab_size)
    return Decision(
        *torch.ops.augur.decide(
            behaviour,
            policy.detach(),
            advantages,
            vocab_size,
            tail_square,
            rule_text(rule),
            validate,
            tail_cube,
            lengths,
        )
    )
