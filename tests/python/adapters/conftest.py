"""The adapters' tests run in virtual environments that hold the frameworks (./check --adapters makes them)."""

import importlib.util
import os
import sys
from pathlib import Path

# This checkout's package, whichever one the environment has; in processes that tests start, too.
PACKAGE = str(Path(__file__).resolve().parents[3] / "python")
sys.path.insert(0, PACKAGE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))

collect_ignore_glob = [
    pattern
    for package in ("trl", "verl")
    if not importlib.util.find_spec(package)
    for pattern in (f"test_{package}_*",)
]
