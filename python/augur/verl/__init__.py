"""Augur's masks in verl: installed, `actor_rollout_ref.actor.policy_loss.loss_mode=augur` is all that selects them.

verl loads this module through the entry point verl.plugins in every process. It registers the policy losses, an FSDP
engine that decides over the trainer's logits, and an agent loop and a vLLM server that record the support. Each does
what verl's own does unless the loss mode is one of Augur's.
"""

import logging

try:
    import verl

    from augur import guards

    guards.check_version("verl", verl.__version__, "0.9.1")

    from augur.verl.agent_loop import AugurSingleTurnAgentLoop
    from augur.verl.engine import AugurFSDPEngine
    from augur.verl.loss import LOSS_MODES, rule_of
    from augur.verl.vllm_server import register_vllm_server

    register_vllm_server()
except Exception:
    # verl logs a plugin that fails at DEBUG alone, and the run would go on without the mask.
    logging.getLogger(__name__).exception("augur.verl could not be loaded; loss modes named augur are not there")
    raise

__all__ = ["LOSS_MODES", "AugurFSDPEngine", "AugurSingleTurnAgentLoop", "rule_of"]
