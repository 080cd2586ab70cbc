"""Ends the processes of a distributed test."""

import os

import torch.distributed as dist


def end_rank():
    """Once all ranks are here, ends this process without destructors: that of a Gloo group waits, holding the
    interpreter's lock, for a thread that may need that lock to drop the last collective's tensors."""
    dist.barrier()
    os._exit(0)
