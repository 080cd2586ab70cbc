"""Loads Augur's shared library: the operators and the whole program. It lies next to this file in an installed package,
in build/ in a source tree, or in site-packages/augur where the package was installed editable."""

import ctypes
import importlib.util
import mmap
import os
import platform
import sys
import warnings
from pathlib import Path

_sets_spins = not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
if _sets_spins:  # before torch loads OpenMP; why: src/cli/main.cc
    os.environ["GOMP_SPINCOUNT"] = "30000" if platform.machine() == "aarch64" else "1000"

if importlib.util.find_spec("numpy") is None:  # which neither torch requires nor Augur
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")

import torch  # noqa: E402

if _sets_spins:
    del os.environ["GOMP_SPINCOUNT"]  # read by now, and nothing for the processes that this one starts

_NAME = "libaugur_torch.so"
_BUILT_FOR = b"augur-built-for-torch "  # augur_torch_version() of src/cli/program.cc

ERROR_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
STEP_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)
GROUP_MAKER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_int)
RESULT_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class Hooks(ctypes.Structure):
    """AugurHooks of src/cli/program.h."""

    _fields_ = [("error", ERROR_HOOK), ("step", STEP_HOOK), ("result", RESULT_HOOK)]


def _found() -> list[Path]:
    """In an installed package the library next to this file; else those of build/ and of an editable install, which has
    no more than the library in site-packages, the newest first."""
    here = Path(__file__).resolve().parent
    if (here / _NAME).exists():
        return [here / _NAME]
    editable = [Path(entry) / "augur" for entry in sys.path if entry]
    candidates = [here.parents[1] / "build" / _NAME]
    candidates += [place / _NAME for place in editable if not (place / "__init__.py").exists()]
    return sorted((path for path in candidates if path.exists()), key=lambda path: -path.stat().st_mtime)


def _load() -> ctypes.CDLL:
    found = _found()
    if not found:
        raise ImportError(f"Augur's library, {_NAME}, is not built: run ./check in the source tree, or pip install it")
    _check_torch(found[0])
    try:
        torch.ops.load_library(found[0])
        return ctypes.CDLL(str(found[0]))
    except OSError as fault:
        reason = str(fault.__cause__ or fault).splitlines()[0]
        raise ImportError(
            f"{found[0]} does not load with torch {torch.__version__}: {reason}; install the torch it was built for, "
            "or build Augur again (pip install .)"
        ) from None


def _check_torch(file: Path) -> None:
    """Of another torch the library misses symbols, or finds some that have changed. Read without loading it."""
    with open(file, "rb") as library, mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(_BUILT_FOR)
        built = content[at + len(_BUILT_FOR) : content.find(b"\0", at)].decode() if at >= 0 else ""
    here = torch.__version__.split("+")[0]
    if built and built.split(".")[:2] != here.split(".")[:2]:
        raise ImportError(
            f"Augur was built for torch {built}, and this is torch {here}: pip install torch=={built}, or an Augur "
            f"built for torch {here}"
        )


library = _load()
library.augur_main.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(Hooks)]
library.augur_version.restype = ctypes.c_char_p
library.augur_set_process_group.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 4]
library.augur_set_process_group.restype = None
library.augur_set_python.restype = None
library.augur_set_python(sys.executable.encode(), str(Path(__file__).resolve().parent).encode())
library.augur_set_group_maker.argtypes = [GROUP_MAKER]
library.augur_set_group_maker.restype = None
library.augur_set_reward_server.restype = None
library.augur_request_stop.restype = None


def version() -> str:
    return library.augur_version().decode()


def run_program(args: list[str], hooks: Hooks | None = None) -> int:
    """Runs `augur ARGS` in this process and returns its exit code; other Python threads go on meanwhile."""
    words = [b"augur", *(arg.encode("utf-8", "surrogateescape") for arg in args)]
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    return library.augur_main(len(words), argv, ctypes.byref(hooks) if hooks is not None else None)
