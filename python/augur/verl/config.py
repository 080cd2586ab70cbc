"""What of verl's configuration Augur reads and refuses. All that can be known is checked in the driver, before Ray
starts work: an error inside an agent loop would be swallowed by the trainer."""

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import verl
import verl.trainer.constants_ppo
import verl.utils.config
from omegaconf import DictConfig, OmegaConf

from augur import guards
from augur.masks import MaskRule, only_masks

# Loss modes and the presets behind them; `augur` alone is the paper's rule. A preset that differs from another in delta
# alone has no mode: delta comes from clip_ratio_low and clip_ratio_high.
_TIGHT = "augur_predictive_kl_tight"
_PRESETS = {f"augur_{name.replace('-', '_')}": name for name in MaskRule.presets()}


def _is_mask(rule: MaskRule) -> bool:
    """Whether the coefficient of a token is its ratio or 0, which is what goes into verl's loss."""
    return rule.ratio_cap is None and only_masks(rule)


LOSS_MODES = {"augur": "predictive-kl-aggregated"} | {
    mode: name for mode, name in _PRESETS.items() if mode != _TIGHT and _is_mask(MaskRule.preset(name))
}
DEFAULT_SUPPORT_SIZE = 20
_VLLM_LIMIT = 20  # vLLM's default for max_logprobs
_STRATEGIES = ("fsdp", "fsdp2", "megatron")


def check_mode(mode: str) -> bool:
    """Whether a loss mode is one of Augur's; raises ValueError for one that only looks like it."""
    if mode == _TIGHT:
        raise ValueError(
            f"policy_loss.loss_mode: {mode} is no mode, because clip_ratio_low and clip_ratio_high set delta; use "
            "augur_predictive_kl_aggregated with actor.clip_ratio_low=0.05 and actor.clip_ratio_high=0.05"
        )
    if mode in _PRESETS and mode not in LOSS_MODES:
        raise ValueError(
            f"policy_loss.loss_mode: {mode} is no mode: the rule does more than mask tokens by their own divergence, "
            "and here Augur only does that; use verl's own loss of that name where it has one"
        )
    if mode not in LOSS_MODES and mode.lower().startswith("augur"):
        raise ValueError(f"policy_loss.loss_mode: unknown mode '{mode}'; Augur's are {', '.join(LOSS_MODES)}")
    return mode in LOSS_MODES


def is_augur(config: DictConfig) -> bool:
    return check_mode(OmegaConf.select(config, "actor_rollout_ref.actor.policy_loss.loss_mode") or "vanilla")


def support_size_of(rollout: Any) -> int:  # noqa: ANN401  a DictConfig or verl's RolloutConfig
    """rollout.custom is verl's own free field: +actor_rollout_ref.rollout.custom.augur.support_size=20."""
    custom = rollout.get("custom", None) or {}
    settings = custom.get("augur", None) or {}
    if not isinstance(settings, Mapping | DictConfig):
        raise ValueError(
            f"actor_rollout_ref.rollout.custom.augur: is {settings!r}; write custom.augur.support_size={settings!r}"
        )
    for name in settings:
        if name != "support_size":
            raise ValueError(
                f"actor_rollout_ref.rollout.custom.augur.{name}: there is no such setting; support_size is the one"
            )
    size = settings.get("support_size", DEFAULT_SUPPORT_SIZE)
    guards.check_support_size(size, "actor_rollout_ref.rollout.custom.augur.")
    return size


def check_config(config: DictConfig) -> None:
    """Raises ValueError for a configuration under which the mask would compare the wrong distributions, or would have
    nothing to compare with."""
    _check_rollout(config.actor_rollout_ref.rollout, "actor_rollout_ref.rollout.")
    _check_agent_loops(config.actor_rollout_ref.rollout.get("agent", None) or {})
    _check_correction(config.algorithm.get("rollout_correction", None) or {})
    _check_thresholds(config.actor_rollout_ref.actor)
    strategy = config.actor_rollout_ref.actor.get("strategy", "fsdp")
    if strategy not in _STRATEGIES:
        raise ValueError(
            f"actor_rollout_ref.actor.strategy: is {strategy}, whose engine does not decide; "
            f"use one of {', '.join(_STRATEGIES)}"
        )
    device = OmegaConf.select(config, "trainer.device") or "cuda"
    if device not in ("cuda", "cpu"):
        raise ValueError(f"trainer.device: is {device}; Augur's engines run on CUDA; set it to cuda")
    if config.actor_rollout_ref.model.get("use_fused_kernels", False):
        raise ValueError("actor_rollout_ref.model.use_fused_kernels: hide the logits; set it to False")
    if (config.get("distillation", None) or {}).get("enabled", False):
        raise ValueError("distillation.enabled: distillation uses the fields that carry the support; set it to False")


def has_own_thresholds(rule: MaskRule) -> bool:
    """A rule without a threshold, and one whose bounds on the ratio are not those of a clip."""
    return rule.proximity == "none" or (rule.proximity == "ratio" and rule.direction == "any")


def thresholds(actor: Any) -> tuple[Any, Any]:  # noqa: ANN401  a DictConfig or verl's ActorConfig
    """For A < 0 and for A > 0, as verl resolves them."""
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    return low, actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high


def note_thresholds(actor: DictConfig) -> None:
    """Says once which delta is used where verl's default is not the preset's."""
    mode = actor.policy_loss.loss_mode
    rule = MaskRule.preset(LOSS_MODES[mode])
    low, high = thresholds(actor)
    if rule.proximity in ("none", "ratio") or low == high == rule.delta:
        return
    guards.note_once(
        f"{mode}: delta is {high} where A > 0 and {low} where A < 0, from actor.clip_ratio_high and clip_ratio_low "
        f"(verl's default is 0.2); the preset {LOSS_MODES[mode]} has {rule.delta}"
    )


def _check_thresholds(actor: DictConfig) -> None:
    rule = MaskRule.preset(LOSS_MODES[actor.policy_loss.loss_mode])
    if has_own_thresholds(rule):
        return
    dual = actor.get("clip_ratio_c", None)
    if rule.dual_clip and not (_is_number(dual) and 1 < dual < float("inf")):
        raise ValueError(
            f"actor_rollout_ref.actor.clip_ratio_c: is {dual!r}; it is the dual clip, which bounds the ratio where "
            "A < 0; set a number above 1, or the loss mode augur_clip, which has none"
        )
    for name in ("clip_ratio_low", "clip_ratio_high"):
        own = actor.get(name, None)
        value = actor.get("clip_ratio", None) if own is None else own
        if not (_is_number(value) and 0 < value < float("inf")):
            raise ValueError(
                f"actor_rollout_ref.actor.{name}: is {value!r}; it is the mask's threshold (delta; for a clip its "
                "distance from 1), for A < 0 (low) and A > 0 (high); set a number above 0"
            )


def _is_number(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_rollout(rollout: DictConfig, where: str) -> None:
    guards.check_temperature(rollout.temperature, where)
    names = ("top_p", "top_k", "min_p", "repetition_penalty", "do_sample")
    guards.check_sampling({name: rollout[name] for name in names if rollout.get(name, None) is not None}, where)
    size = support_size_of(rollout)
    if not rollout.calculate_log_probs:
        raise ValueError(
            f"{where}calculate_log_probs: is False; the ratio needs the rollout's log-probs; set it to True"
        )
    for name in ("logprobs_mode", "engine_kwargs.vllm.logprobs_mode"):  # the second has the last word
        mode = OmegaConf.select(rollout, name) or "processed_logprobs"
        if mode != "processed_logprobs":
            raise ValueError(
                f"{where}{name}: is {mode}; log-probs must be those of the sampling temperature; set it to "
                "processed_logprobs"
            )
    if rollout.name == "trtllm":
        raise ValueError(f"{where}name: is trtllm, whose server gives no top-K log-probs; set it to vllm or sglang")
    raw = os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB", "").lower() in ("1", "true")
    if rollout.name == "sglang" and raw and rollout.temperature != 1.0:
        raise ValueError(
            f"SGLANG_RETURN_ORIGINAL_LOGPROB: is set, so SGLang's log-probs would lack {where}temperature "
            f"({rollout.temperature}); unset it"
        )
    limit = OmegaConf.select(rollout, "engine_kwargs.vllm.max_logprobs", default=_VLLM_LIMIT)
    limit = _VLLM_LIMIT if limit is None else limit
    if rollout.name == "vllm" and limit != -1 and size > limit:
        raise ValueError(
            f"{where}custom.augur.support_size: is {size} and vLLM gives at most {limit} log-probs; set it to {limit} "
            f"or less, or add +{where}engine_kwargs.vllm.max_logprobs={size}"
        )


def _check_agent_loops(agent: Any) -> None:  # noqa: ANN401  a DictConfig or a dict
    """The default agent loop and those of the user's own must derive from SupportMixin, or nobody sends the support
    along."""
    from hydra.utils import get_class
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry, resolve_config_path

    from augur.verl.agent_loop import SupportMixin

    path = agent.get("agent_loop_config_path", None)
    own = {loop.name: loop for loop in OmegaConf.load(resolve_config_path(path))} if path else {}
    known = _agent_loop_registry | own
    default = agent.get("default_agent_loop", "single_turn_agent")
    if default not in known:
        raise ValueError(
            f"actor_rollout_ref.rollout.agent.default_agent_loop: is {default}, which is neither registered nor in "
            f"agent_loop_config_path; name one of {', '.join(known)}, or name its module in VERL_USE_EXTERNAL_MODULES"
        )
    for name in (default, *own):
        target = known[name]["_target_"]
        if not issubclass(get_class(target), SupportMixin):
            raise ValueError(
                f"agent loop {name}: {target} sends no support along; derive it from augur.verl.SupportMixin and its "
                "verl base, in this order"
            )


def _check_correction(correction: Any) -> None:  # noqa: ANN401  a DictConfig or a dict
    if not correction.get("bypass_mode", False):
        raise ValueError(
            "algorithm.rollout_correction.bypass_mode: is False, so verl would take the ratio against recomputed "
            "log-probs; the mask needs the rollout's; set it to True"
        )
    for name in ("rollout_is", "rollout_rs"):
        if correction.get(name, None) is not None:
            raise ValueError(
                f"algorithm.rollout_correction.{name}: is {correction.get(name)}; the ratio is already taken against "
                "the rollout's policy; set it to null"
            )


def check_in_driver() -> None:
    """verl's entry points validate the configuration, or ask for Ray's environment, before they start Ray; from now on
    they check Augur's part of it, too."""
    _check_before(verl.utils.config, "validate_config", ("verl.utils",))
    _check_before(verl.trainer.constants_ppo, "get_ppo_ray_runtime_env")


def _check_before(module: Any, name: str, imported_by: tuple[str, ...] = ()) -> None:  # noqa: ANN401  a module
    function: Callable = getattr(module, name)
    if hasattr(function, "__wrapped__"):
        return

    @functools.wraps(function)
    def check_and_call(config: DictConfig | None = None, *args, **kwargs) -> Any:  # noqa: ANN401
        if config is not None and is_augur(config):
            guards.check_version("verl", verl.__version__, guards.TESTED["verl"])
            check_config(config)
            note_thresholds(config.actor_rollout_ref.actor)
        return function(config, *args, **kwargs)

    # Modules that were imported before hold the function under the same name.
    entry_points = (
        "verl.trainer.main_ppo",
        "verl.trainer.main_ppo_v0",
        "verl.experimental.one_step_off_policy.main_ppo",
    )
    for holder in (module.__name__, *imported_by, *entry_points):
        if getattr(sys.modules.get(holder), name, None) is function:
            setattr(sys.modules[holder], name, check_and_call)
