"""The configuration of AugurGRPOTrainer, and what of TRL's configuration it refuses."""

from dataclasses import dataclass, field

from trl import GRPOConfig

from augur import guards
from augur.masks import MaskRule
from augur.trl import head

_NO_CLIP = 1e9
_CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
_COLOCATE_LIMIT = 20  # vLLM's default for max_logprobs, which TRL leaves alone in colocate mode


@dataclass
class AugurGRPOConfig(GRPOConfig):
    """GRPOConfig with the mask. The mask takes the place of the ratio clip, so `epsilon` and `epsilon_high` are left
    alone (loss_type="cispo", whose epsilon_high caps the ratio, excepted)."""

    mask_rule: str = field(
        default="predictive-kl-aggregated",
        metadata={
            "help": "An augur.MaskRule, or a preset's name with fields after it: 'predictive-kl-exact delta=0.1'"
        },
    )
    support_size: int = field(
        default=20,
        metadata={"help": "How many of the most likely tokens are recorded beside each sampled one."},
    )
    one_pass: bool = field(
        default=True,
        metadata={
            "help": "Take log-probs, mask and gradients from one pass over the LM head where the loss allows it; "
            "otherwise TRL's fused head is used, with the support's rows read beside it."
        },
    )
    epsilon: float = field(default=_NO_CLIP, metadata={"help": "Unused: mask_rule takes its place."})
    vllm_importance_sampling_correction: bool = field(
        default=False,
        metadata={"help": "Must stay off: the ratio is already taken against the recorded policy."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = self.mask_rule if isinstance(self.mask_rule, MaskRule) else MaskRule.preset(self.mask_rule)
        self.mask_rule = rule.text  # as text it can be logged and saved
        why = "one_pass=False" if not self.one_pass else head.obstacle(self)
        if rule.action != "drop" and why:
            raise ValueError(
                f"mask_rule: action is '{rule.action}', which needs the head's gradient in one pass, and {why} rules "
                "that out; change it, or set action='drop'"
            )
        guards.check_support_size(self.support_size)
        guards.check_temperature(self.temperature)
        guards.check_sampling({name: getattr(self, name) for name in ("top_p", "top_k", "min_p", "repetition_penalty")})
        guards.check_generation_kwargs(self.generation_kwargs or {}, self.temperature)
        self._refuse_conflicts()

    def _refuse_conflicts(self) -> None:
        def refuse(name: str, why: str) -> None:
            raise ValueError(f"{name}: is {getattr(self, name)}; {why}")

        if self.vllm_importance_sampling_correction:
            refuse(
                "vllm_importance_sampling_correction",
                "the ratio is already taken against the policy that vLLM recorded; set it to False",
            )
        if self.off_policy_mask_threshold is not None:
            refuse("off_policy_mask_threshold", "mask_rule decides which tokens pass; leave it out")
        if self.use_transformers_continuous_batching:
            refuse(
                "use_transformers_continuous_batching",
                "it gives no log-probs, so there is no support to record; use vLLM or plain transformers generation",
            )
        if self.vllm_structured_outputs_regex is not None:
            refuse(
                "vllm_structured_outputs_regex",
                "it changes the distribution that tokens are sampled from; leave it out",
            )
        if self.loss_type in _CLIPPED_LOSSES:
            for name in ("epsilon", "epsilon_high"):
                if getattr(self, name) not in (None, _NO_CLIP):
                    refuse(
                        name,
                        "mask_rule takes the place of the ratio clip; leave it out, or set it in the rule: "
                        "mask_rule='clip clip_low=0.2 clip_high=0.28'",
                    )
        if self.use_vllm and self.vllm_mode == "colocate" and self.support_size > _COLOCATE_LIMIT:
            refuse(
                "support_size",
                f"vLLM in colocate mode gives at most {_COLOCATE_LIMIT} log-probs; set {_COLOCATE_LIMIT} or less, "
                "or vllm_mode='server'",
            )
