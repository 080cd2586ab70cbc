"""The processes that torchrun, or srun, started together.

Python makes torch's process group, since Gloo's C++ headers are not in torch's wheel; the engine finds it by its name.
"""

import os
import subprocess
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from augur._library import library

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def join() -> None:
    """Joins the group this process was started in, if it was; once."""
    if not dist.is_initialized():
        if not all(name in os.environ for name in _TORCHRUN):
            if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
                return
            os.environ.update(_from_slurm(os.environ))
        _make_group()
    group = dist.group.WORLD
    library.augur_set_process_group(group.group_name.encode(), dist.get_rank(), dist.get_world_size())


def _make_group() -> None:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
        if local_size <= torch.cuda.device_count():  # NCCL refuses two ranks on one GPU
            backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend)


def _hosts(nodes: str) -> list[str]:
    listed = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def _from_slurm(environment: Mapping[str, str], hosts: Callable[[str], list[str]] = _hosts) -> dict[str, str]:
    """What torchrun would have set, from what srun sets in each task of a step."""
    job, step = int(environment["SLURM_JOB_ID"]), int(environment.get("SLURM_STEP_ID", "0"))
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": environment["SLURM_STEP_TASKS_PER_NODE"].split("(")[0].split(",")[0],
        "MASTER_ADDR": hosts(environment["SLURM_STEP_NODELIST"])[0],
        "MASTER_PORT": str(20000 + (job * 16 + step) % 20000),
    }
