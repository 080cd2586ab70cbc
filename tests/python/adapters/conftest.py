"""The adapters' tests run in virtual environments that hold the frameworks (./check --adapters makes them)."""

import importlib.util

collect_ignore_glob = [
    pattern
    for package in ("trl", "verl")
    if not importlib.util.find_spec(package)
    for pattern in (f"test_{package}_*",)
]
