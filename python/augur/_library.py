"""Loads the compiled operators: from beside this file in an installed package, from build/ in a source tree."""

from pathlib import Path

import torch

_NAME = "libaugur_torch.so"


def load() -> None:
    here = Path(__file__).resolve().parent
    candidates = [here / _NAME, here.parents[1] / "build" / _NAME]
    for path in candidates:
        if path.exists():
            torch.ops.load_library(path)
            return
    raise ImportError(
        f"Augur's operators are not built: no {_NAME} at {' or '.join(map(str, candidates))}; "
        "run ./check in the source tree, or pip install it"
    )


load()
