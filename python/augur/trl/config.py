"""The configuration of AugurGRPOTrainer, and what of TRL's configuration the trainers refuse."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from trl import GRPOConfig

from augur import guards
from augur.masks import MaskRule, only_masks

NO_CLIP = 1e9
_COLOCATE_LIMIT = 20  # vLLM's default for max_logprobs, which TRL leaves alone in colocate mode


@dataclass
class MaskFields:
    """What the mask adds to a configuration of TRL's; before it in the order of bases."""

    mask_rule: str = field(
        default="predictive-kl-aggregated",
        metadata={
            "help": "An augur.MaskRule, or a preset's name with fields after it: 'predictive-kl-exact delta=0.1'"
        },
    )
    support_size: int = field(
        default=20,
        metadata={"help": "How many of the most likely tokens are recorded with each sampled one."},
    )

    def settle_rule(self) -> MaskRule:
        if self.mask_rule is None or (isinstance(self.mask_rule, str) and not self.mask_rule.strip()):
            raise ValueError("mask_rule: is empty; give an augur.MaskRule or a preset's name: 'predictive-kl-exact'")
        if not isinstance(self.mask_rule, MaskRule | str):
            self.refuse("mask_rule", "give an augur.MaskRule or a preset's name: 'predictive-kl-exact'")
        rule = self.mask_rule if isinstance(self.mask_rule, MaskRule) else MaskRule.preset(self.mask_rule)
        if not only_masks(rule):
            self.refuse("mask_rule", "TRL's loss follows rules that mask tokens by their own divergence or ratio alone")
        self.mask_rule = rule.text  # as text it can be logged and saved
        return rule

    def check_recording(self) -> None:
        """Raises ValueError for settings under which tokens do not come from softmax(logits / temperature)."""
        guards.check_support_size(self.support_size)
        guards.check_temperature(self.temperature)
        guards.check_sampling({name: getattr(self, name) for name in ("top_p", "top_k", "min_p", "repetition_penalty")})

    def refuse(self, name: str, why: str) -> NoReturn:
        raise ValueError(f"{name}: is {getattr(self, name)!r}; {why}")

    def refuse_clip(self, names: Sequence[str] = ("epsilon", "epsilon_high")) -> None:
        for name in names:
            if getattr(self, name) not in (None, NO_CLIP):
                self.refuse(
                    name,
                    "mask_rule takes the place of the ratio clip; leave it out, or set it in the rule: "
                    "mask_rule='clip clip_low=0.2 clip_high=0.28'",
                )


@dataclass
class AugurGRPOConfig(MaskFields, GRPOConfig):
    """GRPOConfig with the mask. The mask takes the place of the ratio clip, so `epsilon` and `epsilon_high` are left
    alone (loss_type="cispo", whose epsilon_high caps the ratio, excepted)."""

    one_pass: bool = field(
        default=True,
        metadata={
            "help": "Take log-probs, mask and gradients from one pass over the LM head where the loss allows it; "
            "otherwise TRL's fused head is used, with the support's rows read separately."
        },
    )
    epsilon: float = field(default=NO_CLIP, metadata={"help": "Unused: mask_rule takes its place."})
    vllm_importance_sampling_correction: bool = field(
        default=False,
        metadata={"help": "Must stay off: the ratio is already taken against the recorded policy."},
    )

    def __post_init__(self) -> None:
        if self.loss_type == "cispo" and self.epsilon_high is None:
            self.epsilon_high = GRPOConfig.__dataclass_fields__["epsilon"].default  # as TRL has it
        super().__post_init__()
        rule = self.settle_rule()
        self.check_recording()
        if self.delta is not None:
            self._check_delta(rule)
        guards.check_generation_kwargs(self.generation_kwargs or {}, self.temperature)
        self._refuse_conflicts()

    def _check_delta(self, rule: MaskRule) -> None:
        if rule.dual_clip:
            self.refuse("delta", "the rule has a dual_clip, which is the same; set one of them")
        if not (isinstance(self.delta, (int, float)) and math.isfinite(self.delta) and self.delta > 1):
            self.refuse("delta", "it bounds the ratio where the advantage is below 0; set a number above 1, or None")

    def _refuse_conflicts(self) -> None:
        if self.vllm_importance_sampling_correction:
            self.refuse(
                "vllm_importance_sampling_correction",
                "the ratio is already taken against the policy that vLLM recorded; set it to False",
            )
        if self.off_policy_mask_threshold is not None:
            self.refuse("off_policy_mask_threshold", "mask_rule decides which tokens pass; leave it out")
        if self.use_transformers_continuous_batching:
            self.refuse(
                "use_transformers_continuous_batching",
                "it gives no log-probs, so there is no support to record; use vLLM or plain transformers generation",
            )
        if self.vllm_structured_outputs_regex is not None:
            self.refuse(
                "vllm_structured_outputs_regex",
                "it changes the distribution that tokens are sampled from; leave it out",
            )
        if self.loss_type == "cispo":
            if self.epsilon not in (None, NO_CLIP):
                self.refuse("epsilon", "cispo caps the ratio by epsilon_high alone; set that")
        else:
            self.refuse_clip()
        self.epsilon = NO_CLIP  # also where it was None
        if self.use_vllm and self.vllm_mode == "colocate" and self.support_size > _COLOCATE_LIMIT:
            self.refuse(
                "support_size",
                f"vLLM in colocate mode gives at most {_COLOCATE_LIMIT} log-probs; set {_COLOCATE_LIMIT} or less, "
                "or vllm_mode='server'",
            )
