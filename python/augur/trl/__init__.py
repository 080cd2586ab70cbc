"""TRL's trainers under a mask of Augur's: `from augur.trl import AugurGRPOConfig, AugurGRPOTrainer`.

The trainers record the support of every sampled token, carry it with the batch, and take mask and ratio from it.
Rewards, advantages, the loss's reduction, KL, entropy, PEFT, distribution and logging stay TRL's.
"""

import trl

from augur import guards

guards.check_version("trl", trl.__version__, guards.TESTED["trl"])  # before TRL's internals are imported

from augur.trl.config import AugurGRPOConfig  # noqa: E402
from augur.trl.trainer import AugurGRPOTrainer  # noqa: E402

__all__ = ["AugurGRPOConfig", "AugurGRPOTrainer"]


def __getattr__(name: str) -> type:
    """The asynchronous trainer is imported when it is asked for: TRL warns whoever imports its experiments."""
    if name not in ("AugurAsyncGRPOConfig", "AugurAsyncGRPOTrainer"):
        raise AttributeError(f"module 'augur.trl' has no attribute '{name}'")
    from augur.trl import async_grpo

    return getattr(async_grpo, name)
