"""What the Python tests share: the built program, recorded truth, and files of other people's packages."""

import functools
import importlib.util
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from warm_program import WarmProgram

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "augur"
DATA = ROOT / "tests" / "data"

if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))

# A shell's background jobs ignore Ctrl-C, and what they start inherits that; tests of signals need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A GPU machine may have torch and little else; no GPU test stands in this file.
collect_ignore = [] if importlib.util.find_spec("gguf") else ["test_convert.py"]


@functools.cache
def warm_program() -> WarmProgram:
    return WarmProgram()


def run_augur(
    *args,
    stdin: str | bytes = "",
    check: bool = True,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess:
    """Runs build/augur, with `environment` beside its own; with check, a failure shows what it wrote to stderr."""
    words, given = [str(arg) for arg in args], stdin.encode() if isinstance(stdin, str) else stdin
    options = {"input": given, "cwd": cwd or os.getcwd(), "env": os.environ | (environment or {})}
    done = warm_program().run(words, **options) or subprocess.run([PROGRAM, *words], capture_output=True, **options)
    if isinstance(stdin, str):
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    if check and done.returncode != 0:
        raise AssertionError(f"augur {' '.join(map(str, args))} ended with {done.returncode}: {done.stderr}")
    return done


def run_augur_lines(*args, lines: list[dict]) -> list[dict]:
    """Feeds JSON lines to build/augur and returns the JSON lines it writes."""
    stdin = "".join(json.dumps(line) + "\n" for line in lines)
    return [json.loads(line) for line in run_augur(*args, stdin=stdin).stdout.splitlines()]


def truth_file(path: str) -> Path:
    """A file of a package that the tests read but cannot import (requirements-truth.txt)."""
    found = ROOT / ".venv" / "truth" / path
    if not found.exists():
        pytest.skip("needs the packages of requirements-truth.txt, which ./check installs")
    return found


def recorded(name: str) -> list[dict]:
    """The lines of a file of tests/data."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


# One test body for every device; the CUDA half carries the mark gpu, which CTest runs under its label gpu.
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def pytest_collection_modifyitems(items) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    return request.param
