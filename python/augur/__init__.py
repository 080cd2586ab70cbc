"""Reinforcement learning of language models with predictive divergence masks.

`train`, `generate` and `evaluate` run the engine; `Run` reads what a run left.

A mask drops a token's gradient when the policy has left the trust region around the policy that sampled the token
and the update would take it further. `decide` gives the decisions, `policy_loss` the masked loss over logits,
and `linear_policy_loss` the same from hidden states, without holding the logits.
"""

from augur import _library
from augur._engine import Error
from augur._processes import join
from augur.api import evaluate, generate, train
from augur.head import linear_policy_loss
from augur.loss import Metric, PolicyLoss, policy_loss, token_weights
from augur.masks import Decision, MaskRule, decide
from augur.runs import Report, Run

__all__ = [
    "Decision",
    "Error",
    "MaskRule",
    "Metric",
    "PolicyLoss",
    "Report",
    "Run",
    "decide",
    "evaluate",
    "generate",
    "join",
    "linear_policy_loss",
    "policy_loss",
    "token_weights",
    "train",
]
__version__ = _library.version()
