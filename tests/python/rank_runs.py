"""Several ranks of the program for the tests, and a run that looks at the whole batch in every way."""

import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT
from train_runs import write_config

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
# What torchrun passes on must not come from an outer one.
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    ENVIRONMENT.pop(name, None)


AUGUR = ("-m", "augur")
OVER_NCCL = (str(ROOT / "tests" / "python" / "nccl_rank.py"),)  # several ranks on one GPU


def start_ranks(
    count: int, *args, launcher: tuple = (), paths: str = "", program: tuple = AUGUR, **kwargs
) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", *launcher]
    return subprocess.Popen(
        [*command, *program, *map(str, args)],
        env=ENVIRONMENT | {"PYTHONPATH": paths + ENVIRONMENT["PYTHONPATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def run_ranks(
    count: int, *args, stdin: str = "", check: bool = True, program: tuple = AUGUR
) -> subprocess.CompletedProcess:
    process = start_ranks(count, *args, program=program)
    out, err = process.communicate(stdin, timeout=300)
    if check and process.returncode != 0:
        raise AssertionError(
            f"{count} ranks of augur {' '.join(map(str, args))} ended with {process.returncode}: {err}"
        )
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def ranks_of(process: subprocess.Popen) -> list[int]:
    """The processes torchrun started, in the order of their ranks."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            environment = (stat.parent / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if parent == process.pid:
            rank = next((int(v[5:]) for v in environment if v.startswith(b"RANK=")), None)
            found.append((rank, int(stat.parent.name)))
    return [pid for _, pid in sorted(found)]


def rl_config(tmp_path: Path, guesser: tuple[Path, Path], name: str, **changes) -> Path:
    """Five steps with everything that looks at the whole batch: three prompts a minibatch, dynamic sampling,
    evaluation, a KL penalty, an audit."""
    settings = dict(
        data__train=f"[{guesser[1]}]", rollout__prompts=6, rollout__group=3, train__minibatch=3, train__epochs=2,
        train__steps=5, train__lr=0.002, algorithm__dynamic_sampling="true", algorithm__kl_coef=0.1,
        algorithm__anchor="recomputed", train__micro_tokens=12, audit__every=2, mask__delta=0.001,
        eval__files=f"[{guesser[1]}]", eval__every=2, eval__samples=2, checkpoint__every=2, checkpoint__keep=0,
        log__console="false", log__tokens=3,
    )  # fmt: skip
    return write_config(tmp_path / f"{name}.yaml", guesser[0], tmp_path / name, **(settings | changes))
