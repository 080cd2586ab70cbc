"""The package: one wheel with the operators and the engine, which needs torch and CUDA alone."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import termios
import zipfile
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import augur
from conftest import ROOT, run_augur

SMALL = "train.steps=5 rollout.prompts=4 train.minibatch=4 eval.prompts=4 eval.samples=2 run.threads=1".split()
MASKS = """
import augur, torch
rule = augur.MaskRule.preset("predictive-kl-aggregated")
logits = torch.randn(6, 100, requires_grad=True)
logprobs, ids = torch.log_softmax(logits.detach(), -1).topk(20)
augur.policy_loss(rule, logits, ids, logprobs, torch.ones(6)).loss.backward()
print(augur.__file__, augur.__version__, bool(logits.grad.isfinite().all()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([ROOT / "tools" / "make-wheel", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def needed_by(name: str) -> set[str]:
    """A distribution and all that it requires, of those installed here."""
    found, seen, left = set(), set(), [Requirement(name)]
    while left:
        wanted = left.pop()
        try:
            requires = [Requirement(text) for text in metadata.requires(wanted.name) or []]
        except metadata.PackageNotFoundError:  # for another platform
            continue
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        found.add(wanted.name)
        extras = wanted.extras or {""}
        left += [r for r in requires if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]
    return found


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """A new virtual environment with the wheel, and links to torch and what it requires in place of a download: no
    further package, and nothing of the source tree."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    for name in needed_by("torch"):
        for entry in {Path(file).parts[0] for file in metadata.files(name)} - {"..", "__pycache__"}:
            if not (site / entry).exists():
                (site / entry).symlink_to(Path(sysconfig.get_path("purelib")) / entry)
    install = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "-q", "--no-index"]
    subprocess.run([*install, "--disable-pip-version-check", wheel], check=True)  # finds its requirements there
    return venv


def run(environment: Path, program: str, *args, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [environment / "bin" / program, *map(str, args)], cwd=cwd, env=clean, capture_output=True, text=True
    )
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr  # there is no NumPy, for one
    return done.stdout


def test_the_wheel_knows_no_python_abi_and_one_version(wheel):
    assert re.fullmatch(rf"augur_rl-{re.escape(augur.__version__)}-py3-none-linux_\w+\.whl", wheel.name)
    assert run_augur("--version").stdout.strip() == augur.__version__
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
        entries = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert {"augur/libaugur_torch.so", "augur/_reward_worker.py", "augur/py.typed"} <= set(names)
    assert all(name.startswith(("augur/", "augur_verl/", "augur_rl-")) for name in names)
    assert "Name: augur-rl\n" in metadata and "Requires-Dist: torch==2.11.0\n" in metadata
    for extra in ("trl", "verl"):
        assert f"Provides-Extra: {extra}\n" in metadata
    assert "augur = augur.__main__:main" in entries and "augur = augur_verl" in entries


def foreign(libraries) -> list[str]:
    """Those that belong neither to torch nor to CUDA nor to every Linux."""
    torch = re.compile(r"lib(torch\w*|c10\w*|gomp|cu\w+|nv\w+)\.so[.\d]*")
    system = re.compile(r"(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)|ld-linux[\w-]*)\.so[.\d]*")
    return [name for name in libraries if not torch.fullmatch(name) and not system.fullmatch(name)]


def test_it_needs_the_libraries_of_torch_and_cuda_alone(wheel, tmp_path):
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True)
    external = set(re.findall(r"(lib[\w+.-]+\.so[.\d]*)", shown.stdout))
    assert external, shown.stdout + shown.stderr
    assert foreign(external) == [], shown.stdout
    with zipfile.ZipFile(wheel) as archive:
        library = Path(archive.extract("augur/libaugur_torch.so", tmp_path))
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert "libtorch_cpu.so" in needed and foreign(needed) == []
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


def test_published_wheels_leave_the_libraries_of_torch_and_cuda_out():
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    patterns = re.findall(r"--exclude '([^']+)'", workflow)
    for name in (
        "libtorch_cpu.so",
        "libc10_cuda.so",
        "libcudart.so.13",
        "libcublasLt.so.13",
        "libcudnn.so.9",
        "libgomp.so.1",
    ):
        assert any(fnmatch(name, pattern) for pattern in patterns), name
    assert not any(fnmatch("libyaml-0.so.2", pattern) for pattern in patterns)


@pytest.mark.slow
def test_it_trains_and_masks_from_elsewhere(environment, tmp_path):
    out = run(environment, "python", "-c", MASKS, cwd=tmp_path).split()
    assert out[0].startswith(str(environment)) and out[1:] == [augur.__version__, "True"]
    recipe = ROOT / "recipes" / "quickstart.yaml"
    out = run(environment, "augur", "train", recipe, *SMALL, f"model.path={ROOT}/models/tiny", cwd=tmp_path)
    assert "trained 5 steps" in out
    assert (tmp_path / "runs" / "quickstart" / "model" / "model.safetensors").exists()
    assert run(environment, "python", "-m", "augur", "--version", cwd=tmp_path).strip() == augur.__version__


@pytest.mark.slow
def test_an_editable_install_takes_the_library_that_was_built_last(tmp_path):
    """As pip leaves it: the Python files in the source tree, the library alone in site-packages."""
    tree, site = tmp_path / "tree", tmp_path / "site"
    shutil.copytree(ROOT / "python" / "augur", tree / "python" / "augur")
    for folder in (site / "augur", tree / "build"):
        folder.mkdir(parents=True)
    ask = "import augur._library as l; print(l._found()[0], l.version())"

    def loaded() -> list[str]:
        env = os.environ | {"PYTHONPATH": f"{tree / 'python'}:{site}"}
        return subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True).stdout.split()

    assert loaded() == []
    shutil.copy(ROOT / "build" / "libaugur_torch.so", site / "augur")
    assert loaded() == [str(site / "augur" / "libaugur_torch.so"), augur.__version__]
    shutil.copy(ROOT / "build" / "libaugur_torch.so", tree / "build")
    assert loaded() == [str(tree / "build" / "libaugur_torch.so"), augur.__version__]


def pip_install(tmp_path: Path, *define: str, env: dict[str, str]) -> str:
    """What `pip install .` says where it ends in CMake's configuration."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-w", tmp_path]
        + ["-C", f"build-dir={tmp_path / 'build'}", *(word for name in define for word in ("-C", name))],
        env=os.environ | env,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_missing_packages_are_one_line_of_apt(tmp_path):
    """CMake stops before anything else, with what to type; a compiler may be missing, too."""
    kinds = [f"-DCMAKE_FIND_ROOT_PATH_MODE_{kind}=ONLY" for kind in ("INCLUDE", "PROGRAM")]
    nowhere = " ".join(["-DCMAKE_FIND_ROOT_PATH=/nowhere", *kinds])
    said = pip_install(tmp_path, env={"CMAKE_ARGS": nowhere})
    lines = [line.strip() for line in said.splitlines() if "apt-get" in line]
    packages = "g++ libboost-dev libcli11-dev libfmt-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev libyaml-dev"
    packages += " libjs-chart.js"
    assert lines and lines[-1] == f"sudo apt-get install {packages}", said


def test_without_nvcc_it_says_that_it_builds_for_cpus_alone(tmp_path):
    """And with it, that a package is for every architecture: told by CMake, before it compiles."""
    folders = [tmp_path / "bin", "/usr/bin", "/bin"]
    folders[0].mkdir()
    for tool in ("cmake", "ninja"):
        (folders[0] / tool).symlink_to(shutil.which(tool))
    arguments = [
        "-G",
        "Ninja",
        "-DAUGUR_TESTS=OFF",
        "-DSKBUILD=2",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    terminal, device = os.openpty()
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path / "build", *arguments],
        env={"PATH": ":".join(map(str, folders)), "HOME": str(tmp_path), "CXX": "clang-of-python++"},  # not there
        capture_output=True,
        text=True,
        preexec_fn=lambda: (os.setsid(), fcntl.ioctl(device, termios.TIOCSCTTY, 0)),  # as a shell's child has it
    )
    assert done.returncode == 0, done.stderr
    shown = os.read(terminal, 4096).decode()  # though pip keeps what the build prints
    assert "no nvcc was found, so this builds for CPUs alone" in shown
    assert "no nvcc was found, so this builds for CPUs alone" in done.stdout + done.stderr
    commands = (tmp_path / "build" / "compile_commands.json").read_text()
    assert "-Wextra" in commands and "-Werror" not in commands  # compilers of other machines may warn of more
    cache = (tmp_path / "build" / "CMakeCache.txt").read_text()
    assert "AUGUR_CUDA_ARCHITECTURES:STRING=80;89;90;100;120\n" in cache
