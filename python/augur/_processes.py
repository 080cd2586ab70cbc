"""The processes that torchrun, or srun, started together.

Python makes torch's process group, since Gloo's C++ headers are not in torch's wheel; the engine finds it by its name.
"""

import ctypes
import functools
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist

from augur._library import GROUP_MAKER, library

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
VARIABLES = (*_TORCHRUN, "SLURM_STEP_NUM_TASKS")  # without which a process is alone
_POLL_SECONDS = 0.02

_joined = False


def join() -> None:
    """Joins the processes that torchrun or srun started together with this one.

    All of them call it. From then on `augur.train`, `augur.generate` and `augur.evaluate` are calls of all together,
    with the same arguments: they divide the work, and the first process gets the responses or figures. Without it each
    process is alone, whatever its environment holds. Where torch.distributed is initialized, its group is the one that
    is joined. `python -m augur` joins by itself.
    """
    global _joined
    if not dist.is_initialized():
        if not all(name in os.environ for name in _TORCHRUN):
            if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
                return
            os.environ.update(_from_slurm(os.environ))
        _make_group()
    group = _group_of_all()
    library.augur_set_group_maker(_divide)
    gpu = "nccl" in _backends()
    library.augur_set_process_group(
        group.group_name.encode(), dist.get_rank(), dist.get_world_size(), gpu, _local_size()
    )
    _joined = True


def _backends() -> str:
    """Of the groups that the engine uses: it sends numbers of the CPU, too."""
    given = dist.get_backend_config()
    return given if "cpu:" in given else f"cpu:gloo,{given}"


@functools.cache
def _group_of_all() -> dist.ProcessGroup:
    """The group that torch was given, or one next to it where that sends nothing from a CPU, as "nccl" alone."""
    if _backends() == dist.get_backend_config():
        return dist.group.WORLD
    return dist.new_group(backend=_backends())


def is_first() -> bool:
    """Whether this process writes what a command makes."""
    return not _joined or dist.get_rank() == 0


def alone() -> bool:
    return not _joined or dist.get_world_size() == 1


@GROUP_MAKER
def _divide(count: int, names: object, size: int) -> None:
    text = _divided(count)[: size - 1]
    ctypes.memmove(names, text, len(text))


@functools.cache
def _divided(count: int) -> bytes:
    """The names of this rank's two groups: its neighbours, one of `count` groups, and those at its place in theirs.
    Made once, since torch keeps connections and threads of each group until the process ends."""
    ranks = dist.get_world_size()
    width = ranks // count
    mine = ""
    for members in [*_parts(ranks, width), *(range(place, ranks, width) for place in range(width))]:
        group = dist.new_group(list(members), backend=_backends())
        if dist.get_rank() in members:
            mine += group.group_name + "\n"
    return mine.encode()


def _parts(ranks: int, width: int) -> list[range]:
    return [range(begin, begin + width) for begin in range(0, ranks, width)]


def _local_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))


def _make_group() -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    store, rank, size = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(_start_name(store, rank, size), store)
    backend = "cpu:gloo,cuda:nccl" if _have_gpus(store, rank, size) else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    _wait_for_all(store, rank, size)


def _wait_for_all(store: dist.Store, rank: int, size: int) -> None:
    """So that a short command does not end while others still connect to its process, or to the store in it."""
    if rank == 0:
        _wait_for_count(store, "joined", size - 1)
        store.set("all_joined", "")
        _wait_for_count(store, "told", size - 1)
    else:
        store.add("joined", 1)
        store.wait(["all_joined"])
        store.add("told", 1)


def _wait_for_count(store: dist.Store, key: str, count: int) -> None:
    for _ in _turns(store):
        if store.add(key, 0) == count:
            return
    raise TimeoutError(f"process group: {count - store.add(key, 0)} of {count} other ranks did not come or ended early")


def _start_name(store: dist.Store, rank: int, size: int) -> str:
    """A name that the processes of this start agree on, and no others: torchrun keeps the store when it starts them
    again, with what the earlier ones wrote, and some of those may have ended before they wrote anything.

    Each process says that it is here. The first tells who is, and tells it anew where one of them turns out to have
    been of an earlier start, until all have heard a telling that has themselves in it.
    """
    me = secrets.token_hex(8)
    store.set(f"augur/here/{rank}", me)
    if rank == 0:
        return _tell_who_is_here(store, size)
    heard = None
    for _ in _turns(store):
        if not store.check(["augur/present"]):
            continue
        present = store.get("augur/present")
        if me.encode() in present.split():
            name = _name_of(present)
            if name != heard:
                store.add(f"{name}/heard", 1)
                heard = name
            if store.check([f"{name}/agreed"]):
                return name
    raise TimeoutError("process group: rank 0 did not come, or waits for another")


def _tell_who_is_here(store: dist.Store, size: int) -> str:
    told = name = None
    here = [f"augur/here/{rank}" for rank in range(size)]
    for _ in _turns(store):
        absent = [rank for rank in range(size) if not store.check([here[rank]])]
        if absent:
            continue
        present = b" ".join(store.multi_get(here))
        if present != told:
            told, name = present, _name_of(present)
            store.set("augur/present", present)
        if store.add(f"{name}/heard", 0) == size - 1:
            store.set(f"{name}/agreed", "")
            return name
    raise TimeoutError(f"process group: of {size} ranks these did not come: {absent or 'some that ended early'}")


def _turns(store: dist.Store) -> Iterator[None]:
    """Turns of waiting for others, while the store's own limit has not passed."""
    end = time.monotonic() + store.timeout.total_seconds()
    while time.monotonic() < end:
        yield
        time.sleep(_POLL_SECONDS)


def _name_of(present: bytes) -> str:
    return f"augur/{hashlib.sha256(present).hexdigest()[:16]}"


def _have_gpus(store: dist.Store, rank: int, size: int) -> bool:
    """Whether each rank has a GPU of its own, as NCCL asks: one of those it sees, or the only one."""
    here = torch.cuda.is_available()
    store.set(f"gpu/{rank}", str(torch.cuda.get_device_properties("cuda").uuid) if here else "none")
    gpus = store.multi_get([f"gpu/{r}" for r in range(size)])
    return b"none" not in gpus and len(set(gpus)) == size


def _first_host(nodes: str) -> str:
    """Of Slurm's lists: node[01-04,07],other begins with node01."""
    prefix, number = re.match(r"([^,\[]+)(?:\[(\w+))?", nodes).groups(default="")
    return prefix + number


def _tasks_per_node(text: str) -> list[int]:
    """Of Slurm's 4(x2),1: [4, 4, 1]."""
    counts = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts


def _from_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would have set, from what srun sets in each task of a step."""
    job, step = int(environment["SLURM_JOB_ID"]), int(environment.get("SLURM_STEP_ID", "0"))
    tasks = _tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(tasks[int(environment.get("SLURM_NODEID", "0"))]),
        "MASTER_ADDR": _first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(20000 + (job * 16 + step) % 20000),
    }
