"""The policy losses `augur` and `augur_<preset>`, and the step that hands them the engine's decisions."""

from contextvars import ContextVar
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import ActorConfig
from verl.workers.utils.padding import no_padding_2_padding

from augur import support
from augur.masks import Decision, MaskRule, decide
from augur.support import Support, VocabShard
from augur.verl.config import LOSS_MODES, check_mode, has_own_thresholds, thresholds

_LOG_RATIO_LIMIT = 20.0

# Which tokens pass in the loss under way, and which have no support. verl's loss passes a fixed set of fields, so they
# cannot come as arguments.
_mask: ContextVar[tuple[torch.Tensor, torch.Tensor] | None] = ContextVar("augur_mask", default=None)


def rule_of(config: ActorConfig) -> MaskRule | None:
    """The rule an actor's configuration asks for; None where the loss mode is not one of Augur's.

    Thresholds come from clip_ratio_high (A > 0) and clip_ratio_low (A < 0), as for verl's own dppo_kl and dppo_tv; a
    dual clip is verl's clip_ratio_c. icepop and mis-token keep the preset's bounds.
    """
    mode = config.policy_loss.get("loss_mode", "vanilla")
    if not check_mode(mode):
        return None
    low, high = thresholds(config)
    preset = LOSS_MODES[mode]
    rule = MaskRule.preset(preset)
    if has_own_thresholds(rule):
        return rule
    if rule.proximity == "ratio":
        dual = config.clip_ratio_c if rule.dual_clip else 0
        return MaskRule.preset(f"{preset} clip_low={low} clip_high={high} dual_clip={dual}")
    return MaskRule.preset(f"{preset} delta={high} delta_negative={low}")


def masked_policy_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: ActorConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """-M r A over the response, r against the rollout's log-probs; all tensors [B, T]."""
    mask = _mask.get()
    if mask is None:
        raise ValueError(
            "augur loss: there is no mask for this batch, because the engine that decides is not Augur's; use the "
            "strategy fsdp, fsdp2 or megatron on CUDA, and see that `pip show augur-rl` finds the package on every node"
        )
    if rollout_is_weights is not None:
        raise ValueError(
            "algorithm.rollout_correction: gives importance weights, but the ratio is already taken against the "
            "rollout's policy; set rollout_is=null and rollout_rs=null"
        )
    keep, _ = mask
    live = keep & response_mask.bool()
    log_ratio = (log_prob - old_log_prob).detach().clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    # Selected twice: a token that does not count contributes nothing, whatever its ratio or log-prob is.
    ratio = torch.where(live, log_ratio, 0).exp()
    slope = torch.where(live, log_prob - log_prob.detach(), 0)  # 0, with the gradient of log pi
    losses = torch.where(live, -advantages * ratio * (1 + slope), 0)
    info = config.global_batch_info if config is not None else {}
    loss = agg_loss(loss_mat=losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **info)
    return loss, {"actor/pg_clipfrac_lower": 0.0}  # the others need what the whole mini-batch has (MaskedLoss)


for _mode in LOSS_MODES:
    register_policy_loss(_mode)(masked_policy_loss)


class MaskedLoss:
    """verl's loss function with the mask around it. The engine gives it the logits first, then the model's output."""

    def __init__(self, loss_function, rule: MaskRule) -> None:  # noqa: ANN001  a partial of verl's ppo_loss
        self._loss_function, self._rule = loss_function, rule

    def decide(self, logits: torch.Tensor, recorded: Support, shard: VocabShard | None = None) -> dict:
        """Decisions [n] from logits [n, V] at the temperature and the support [n, M] of what each row predicts.

        They are taken for both signs of the advantage, which is not packed as the logits are.
        """
        logits = logits.detach()
        rows = (recorded.ids[:, 0] >= 0).nonzero()[:, 0]
        exact = self._rule.tail == "exact" and self._rule.direction == "predicted"
        ids, behaviour = recorded.ids[rows], recorded.logprobs[rows]
        policy, square = support.read_logits(logits, rows, ids, exact, shard)
        vocab_size = logits.shape[1] if shard is None else shard.vocab_size
        out = {name: logits.new_zeros(len(logits), dtype=torch.float32) for name in _OUTPUTS}
        for name, sign in (("augur_flags_up", 1.0), ("augur_flags_down", -1.0)):
            signs = torch.full((len(rows),), sign, device=logits.device)
            decision = decide(self._rule, behaviour, policy, signs, vocab_size, square, validate=False)
            out[name].fill_(_MISSING)[rows] = decision.flags.float()
            out["augur_divergence"][rows] = decision.divergence.float()
        return out

    def __call__(self, model_output: dict, data: TensorDict, dp_group=None) -> tuple[torch.Tensor, dict]:  # noqa: ANN001
        up, down, divergence = (no_padding_2_padding(model_output.pop(name), data) for name in _OUTPUTS)
        fields = data.select("response_mask", "advantages", "old_log_probs").to_padded_tensor()
        advantages, counted = fields["advantages"], fields["response_mask"].bool()
        flags = torch.where(advantages < 0, down, up).to(torch.uint8)
        missing = flags.bitwise_and(_MISSING).bool()
        still = (advantages == 0) & ~missing  # kept by every criterion
        flags = torch.where(still, flags.bitwise_and(_OUTSIDE).bitwise_or(_KEEP), flags)
        keep = flags.bitwise_and(_KEEP).bool() & ~missing
        token = _mask.set((keep, missing))
        try:
            loss, metrics = self._loss_function(model_output=model_output, data=data, dp_group=dp_group)
        finally:
            _mask.reset(token)
        log_prob = no_padding_2_padding(model_output["log_probs"], data).detach()
        log_ratio = (log_prob - fields["old_log_probs"]).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
        seen = (log_ratio.exp(), divergence, divergence, keep, flags)  # the direction enters no metric
        means = support.mask_metrics(support.mask_sums(Decision(*(x[counted] for x in seen))))
        known = counted & torch.isfinite(log_ratio)
        means["actor/pg_clipfrac"] = means["mask/masked"]
        means["actor/ppo_kl"] = support.Metric(-log_ratio[known].double().sum().item(), counted.sum().item())
        return loss, metrics | _global_means(means, data)


_OUTPUTS = ("augur_flags_up", "augur_flags_down", "augur_divergence")
_KEEP, _OUTSIDE, _MISSING = 1, 2, 32
SUPPORTED_TOKENS = "augur_supported_tokens"  # of the mini-batch on all ranks: what the engine notes
_OF_ALL_TOKENS = ("mask/missing", "actor/ppo_kl")  # the others are means over those that have a support


def _global_means(means: dict[str, support.Metric], data: TensorDict) -> dict[str, Metric]:
    """Means over the tokens of the whole mini-batch, however it is split: like verl's pg_loss, each micro-batch gives
    its share."""
    tokens, dp_size = data["batch_num_tokens"], data["dp_size"]
    if tokens is None:
        return {name: Metric(AggregationType.MEAN, mean.value) for name, mean in means.items()}
    tokens = tokens.item() if isinstance(tokens, torch.Tensor) else tokens
    supported = tu.get_non_tensor_data(data=data, key=SUPPORTED_TOKENS, default=tokens)
    counts = {name: tokens if name in _OF_ALL_TOKENS else supported for name in means}
    shares = {name: mean.numerator * dp_size / max(counts[name], 1) for name, mean in means.items()}
    return {name: Metric(AggregationType.SUM, share) for name, share in shares.items()}
