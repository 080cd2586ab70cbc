"""Predictive divergence masks for reinforcement learning of language models.

A mask drops a token's gradient when the policy has left the trust region around the policy that sampled the token
and the update would take it further. `decide` gives the decisions, `policy_loss` the masked loss over logits,
and `linear_policy_loss` the same from hidden states, without holding the logits.
"""

from augur.head import linear_policy_loss
from augur.loss import Metric, PolicyLoss, policy_loss, token_weights
from augur.masks import Decision, MaskRule, decide

__all__ = [
    "Decision",
    "MaskRule",
    "Metric",
    "PolicyLoss",
    "decide",
    "linear_policy_loss",
    "policy_loss",
    "token_weights",
]
__version__ = "0.1.0"
