"""Kernels that are compiled for more than the baseline must keep their code to themselves."""

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

OBJECTS = sorted((ROOT / "build/CMakeFiles").glob("augur_kernels_avx*.dir/**/*.o"))
OBJECTS += sorted((ROOT / "build/CMakeFiles/augur_kernels.dir").glob("**/packed_gemm_a[vm]x*.o"))
OWN = re.compile(r"augur::(avx2|avx512)::")


def shared_functions(symbols: str) -> list[str]:
    """Those that the linker may take for other files' too: weak ones outside the instruction set's namespace."""
    weak = re.findall(r"^[0-9a-f]+ [WVu] (.*)$", symbols, re.MULTILINE)
    return [name for name in weak if not OWN.search(name) and not name.startswith("DW.ref.")]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="one width of vectors here")
def test_there_are_objects_of_each_instruction_set():
    assert len(OBJECTS) >= 10


@pytest.mark.parametrize("path", OBJECTS, ids=lambda p: f"{Path(p).parents[3].name}-{p.name}")
def test_no_function_of_a_wider_instruction_set_can_stand_in_for_the_baselines(path):
    symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
    assert shared_functions(symbols) == []


def test_the_rule_itself_can_fail():
    assert shared_functions("0000 W std::vector<float>::resize(unsigned long)\n") == [
        "std::vector<float>::resize(unsigned long)"
    ]
    assert shared_functions("0000 W augur::avx512::SetRow(float*)\n0000 T augur::F()\n") == []


def test_doctor_says_which_instruction_set_is_in_use():
    done = subprocess.run(
        [ROOT / "build/augur", "doctor"], capture_output=True, text=True, env={**os.environ, "AUGUR_CPU": "baseline"}
    )
    assert "kernels use baseline (AUGUR_CPU)" in done.stdout


@pytest.mark.parametrize("name", ["sse9", "bfmmla" if platform.machine() == "x86_64" else "amx"])
def test_an_instruction_set_that_is_not_here_is_refused_in_one_line(name):
    command = [ROOT / "build/augur", "prompts", "task:sort:count=1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "AUGUR_CPU": name})
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"augur: AUGUR_CPU={name}: ") and done.stderr.count("\n") == 1
    assert "baseline" in done.stderr  # what to take instead


def test_a_gpu_that_is_none_is_refused_in_one_line():
    command = [ROOT / "build/augur", "prompts", "task:sort:count=1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "AUGUR_GPU": "hopper"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("augur: AUGUR_GPU=hopper: ") and done.stderr.count("\n") == 1
    assert subprocess.run(command, env={**os.environ, "AUGUR_GPU": "8.0"}, capture_output=True).returncode == 0


def test_each_instruction_set_that_is_here_can_be_chosen():
    known = ["baseline", "avx2", "avx512", "avx512bf16", "amx", "bfmmla"]
    command = [ROOT / "build/augur", "prompts", "task:sort:count=1"]
    codes = [subprocess.run(command, env={**os.environ, "AUGUR_CPU": k}, capture_output=True).returncode for k in known]
    assert codes[0] == 0 and set(codes) <= {0, 2}
