"""What ./quickstart and ./check say about a machine that cannot serve them."""

import os
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_an_old_python_is_refused_in_one_line(tmp_path):
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\n[ "$1" != --version ] || echo Python 3.10.12\n[ "$1" = --version ]\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", "set -euo pipefail; source tools/setup.sh; set_up_python"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "augur: Python 3.11 or newer is needed and Python 3.10.12 found; install it and put it first in PATH"
    ]


def test_the_package_needs_the_same_python():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"] == ">=3.11"
