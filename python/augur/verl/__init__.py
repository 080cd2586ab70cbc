"""Augur's masks in verl: installed, `actor_rollout_ref.actor.policy_loss.loss_mode=augur` is all that selects them.

verl loads this module through the entry point verl.plugins (augur_verl) in every process. It registers the policy
losses, engines that decide over the trainer's logits, and agent loops and servers that record the support. Each does
what verl's own does unless the loss mode is one of Augur's.
"""

from verl.workers import engine as engines

from augur.verl.agent_loop import AugurSingleTurnAgentLoop, AugurToolAgentLoop, SupportMixin, wrap_worker
from augur.verl.config import LOSS_MODES, check_in_driver
from augur.verl.engine import AugurFSDPEngine
from augur.verl.loss import rule_of
from augur.verl.replicas import register_replicas

AugurMegatronEngine = None
if getattr(engines, "MegatronEngineWithLMHead", None) is not None:  # None where megatron-core is not installed
    from augur.verl.megatron_engine import AugurMegatronEngine

wrap_worker()
check_in_driver()
register_replicas()

__all__ = [
    "LOSS_MODES",
    "AugurFSDPEngine",
    "AugurMegatronEngine",
    "AugurSingleTurnAgentLoop",
    "AugurToolAgentLoop",
    "SupportMixin",
    "rule_of",
]
