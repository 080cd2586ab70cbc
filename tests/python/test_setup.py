"""What ./quickstart and ./check do before the program is there, and what ./quickstart says at its end."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_an_old_python_is_refused_in_one_line(tmp_path):
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\n[ "$1" != --version ] || echo Python 3.10.12\n[ "$1" = --version ]\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", "set -euo pipefail; source tools/setup.sh; set_up_python requirements.txt"],
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


def in_setup(script: str, folder: Path, path: str = "") -> subprocess.CompletedProcess:
    """Runs a script in `folder` with the functions of tools/setup.sh."""
    command = f"set -euo pipefail; source {ROOT}/tools/setup.sh; {script}"
    environment = os.environ | {"PATH": f"{path}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, env=environment)


def test_only_what_is_asked_for_is_configured(tmp_path):
    cmake = tmp_path / "cmake"
    cmake.write_text('#!/bin/sh\necho "$@" >>calls\n')
    cmake.chmod(0o755)

    def calls(script):
        (tmp_path / "calls").unlink(missing_ok=True)
        assert in_setup(script, tmp_path, str(tmp_path)).returncode == 0
        made = tmp_path / "calls"
        return made.read_text().splitlines() if made.exists() else []

    assert calls("configure") == ["--preset default -DAUGUR_CUDA=OFF -DAUGUR_TESTS=OFF"]
    assert calls("configure AUGUR_CUDA")[0].endswith("-DAUGUR_TESTS=OFF -DAUGUR_CUDA=ON")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "build.ninja").touch()
    (tmp_path / "build" / "CMakeCache.txt").write_text("AUGUR_CUDA:BOOL=OFF\nAUGUR_TESTS:BOOL=ON\n")
    assert calls("configure") == [] and calls("configure AUGUR_TESTS") == []
    assert calls("configure AUGUR_CUDA AUGUR_TESTS") == ["--preset default -DAUGUR_CUDA=ON"]
    (tmp_path / "build" / "CMakeCache.txt").write_text("AUGUR_TORCH:BOOL=OFF\n")
    assert calls("configure") == ["--preset default -DAUGUR_TORCH=ON"]


def test_a_gpu_and_chromium_are_found_however_much_is_said_of_them(tmp_path):
    """What a pipe's first reader leaves unread must not count as a failure of the writer."""
    for name, line in {"nvidia-smi": "GPU 0: one of many", "apt-cache": "  Candidate: 156.0.1-1"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\nset -e\nfor i in {{1..50000}}; do echo '{line}'; done\n")
        (tmp_path / name).chmod(0o755)
    assert in_setup("has_gpu", tmp_path, str(tmp_path)).returncode == 0
    fakes = "command() { false; }; install_system_packages() { echo $1; }"
    assert in_setup(f"{fakes}; install_browser", tmp_path, str(tmp_path)).stdout == "chromium\n"
    fakes = "command() { false; }; install_system_packages() { return 1; }"
    assert "could not be installed" in in_setup(f"{fakes}; install_browser", tmp_path, str(tmp_path)).stdout


def test_what_needs_no_torch_is_compiled_while_packages_are_installed(tmp_path):
    (tmp_path / "cmake").write_text('#!/bin/sh\necho "cmake $@" >>calls\n')
    (tmp_path / "ninja").write_text(
        "#!/bin/sh\ntrap 'echo stopped >>calls; exit 1' TERM\necho ninja >>calls\nsleep 60 & wait\n"
    )
    for name in ("cmake", "ninja"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "requirements.txt").touch()
    slow = "install_system_packages() { :; }; make_venv() { until grep -q ninja calls; do sleep 0.1; done; }"
    done = in_setup(f"{slow}; set_up_python requirements.txt", tmp_path, str(tmp_path))
    assert done.returncode == 0 and done.stdout == "", done.stderr
    first = "cmake --preset default -DAUGUR_TORCH=OFF -DAUGUR_CUDA=OFF -DAUGUR_TESTS=OFF"
    # The whole build goes on with what was made until then.
    assert (tmp_path / "calls").read_text().splitlines() == [first, "ninja", "stopped"]


def fake_python(folder: Path, settings: str, uv_fails: bool = False, pip_fails: bool = False) -> None:
    """An environment whose pip and uv note what they are asked to do."""
    (folder / "env" / "bin").mkdir(parents=True, exist_ok=True)
    python = folder / "env" / "bin" / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *"config list") cat <<"END"\n{settings}\nEND\n;;\n'
        f"-c*) echo {folder};;\n"
        f'*) echo "${{SSL_CERT_FILE:-}} $*" >>{folder}/calls\n'
        f'case "$*" in *"uv --no-config"*) exit {int(uv_fails)};; *"--no-compile"*) exit {int(pip_fails)};; esac;;\n'
        "esac\n"
    )
    python.chmod(0o755)


def test_packages_come_from_where_pip_is_told_and_once(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch\n")
    (tmp_path / "requirements-check.txt").write_text("-r requirements.txt\npytest\n")
    (tmp_path / "python").mkdir()

    def calls(requirements, settings, **options):
        (tmp_path / "calls").unlink(missing_ok=True)
        fake_python(tmp_path, settings, **options)
        done = in_setup(f"make_venv env {requirements}", tmp_path)
        assert done.returncode == 0, done.stderr
        made = tmp_path / "calls"
        return [line.strip() for line in made.read_text().splitlines()] if made.exists() else []

    told = (
        ":env:.index-url='https://packages.example/simple'\nglobal.cert='/etc/cert.pem'\nglobal.index-url='https://b'"
    )
    installed = calls("requirements-check.txt", told)
    assert len(installed) == 2 and "pip install" in installed[0] and "uv==" in installed[0]
    assert installed[1] == (
        "/etc/cert.pem -m uv --no-config pip install --python env/bin/python "
        "--index-url https://packages.example/simple -r requirements-check.txt"
    )
    assert calls("requirements-check.txt", told) == [] and calls("requirements.txt", told) == []

    (tmp_path / "requirements.txt").write_text("torch==3\n")  # changed: whoever includes it, too
    assert len(calls("requirements-check.txt", told, uv_fails=True)) == 3  # pip at the end
    (tmp_path / "requirements.txt").write_text("torch==4\n")
    (by_pip,) = calls("requirements.txt", "global.extra-index-url='https://c'")  # which uv reads otherwise
    assert by_pip.endswith("-r requirements.txt") and " uv " not in by_pip


def test_what_an_interrupted_installation_left_is_installed_anew(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch\n")
    (tmp_path / "python").mkdir()
    (tmp_path / "python3").write_text("#!/bin/sh\n" + f'echo "$@" >>{tmp_path}/calls\n')
    (tmp_path / "python3").chmod(0o755)

    def calls(code, **options):
        (tmp_path / "calls").unlink(missing_ok=True)
        fake_python(tmp_path, "", **options)
        assert in_setup("make_venv env requirements.txt", tmp_path, str(tmp_path)).returncode == code
        return (tmp_path / "calls").read_text().splitlines()

    by_uv, by_pip = calls(1, uv_fails=True, pip_fails=True)[-2:]  # a full disk, say
    assert "--reinstall" not in by_uv and "--force-reinstall" in by_pip
    made, _, by_uv = calls(0)
    assert made == "-m venv env" and "--reinstall" in by_uv  # which leaves what else is in it
    (tmp_path / "requirements.txt").write_text("torch==3\n")
    assert not any("reinstall" in line for line in calls(0))


def test_two_do_not_set_up_the_same_folder_at_once(tmp_path):
    other = f"timeout 20 bash -c 'source {ROOT}/tools/setup.sh; wait_for_others; echo second'"
    script = f"wait_for_others; {other} {{setting_up}}>&- & sleep 0.7; echo first; exec {{setting_up}}>&-; wait"
    said = in_setup(script, tmp_path).stdout.splitlines()
    assert "waiting for another" in said[0] and said[1:] == ["first", "second"]


def test_a_missing_python_is_installed(tmp_path):
    fakes = "command() { false; }; install_system_packages() { echo $@; exit 5; }"
    done = in_setup(f"{fakes}; set_up_python requirements.txt", tmp_path)
    assert (done.returncode, done.stdout) == (5, "python3 python3-venv\n")


def configured(folder: Path, *options: str, path: Path) -> tuple[str, str]:
    """What CMake says of this project, and the commands to compile it."""
    done = subprocess.run(
        ["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "-DAUGUR_TESTS=OFF", *options],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{path}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, (folder / "compile_commands.json").read_text()


def test_paths_may_have_spaces_and_gpus_of_any_age_may_be_there(tmp_path):
    folder = tmp_path / "with space"
    folder.mkdir()
    for name, line in {"python": f"{folder}/torch;2.11.0", "nvidia-smi": "7.5"}.items():
        (folder / name).write_text(f"#!/bin/sh\necho '{line}'\n")
        (folder / name).chmod(0o755)
    options = (f"-DAUGUR_PYTHON={folder}/python", "-DAUGUR_CUDA=OFF")
    _, commands = configured(folder / "build", *options, path=folder)
    commands = [shlex.split(entry["command"]) for entry in json.loads(commands)]
    with_torch = [words for words in commands if "-idirafter" in words]
    assert with_torch and all(f"{folder}/torch/include" in words for words in with_torch)
    assert "AUGUR_CUDA_ARCHITECTURES:STRING=90\n" in (folder / "build" / "CMakeCache.txt").read_text()


def test_an_older_nvcc_is_left_alone_and_one_that_has_come_is_found(tmp_path):
    nvcc = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("no nvcc")
    older = tmp_path / "nvcc"
    older.write_text(
        f'#!/bin/sh\n[ "$*" != --version ] || {{ echo "release 12.0, V12.0.1"; exit; }}\nexec {nvcc} "$@"\n'
    )
    older.chmod(0o755)
    said, _ = configured(tmp_path / "build", f"-DAUGUR_PYTHON={sys.executable}", path=tmp_path)
    assert "nvcc is older than nvcc 13" in said and "this builds for CPUs alone" in said
    (tmp_path / "cmake").write_text('#!/bin/sh\necho "$@" >>calls\n')
    (tmp_path / "cmake").chmod(0o755)
    (tmp_path / "build" / "CMakeCache.txt").write_text("AUGUR_CUDA:BOOL=ON\nCMAKE_CUDA_COMPILER:FILEPATH=NOTFOUND\n")
    assert in_setup("configure AUGUR_CUDA", tmp_path, str(tmp_path)).returncode == 0
    assert (tmp_path / "calls").read_text() == "--preset default -UCMAKE_CUDA_COMPILER\n"


def test_long_work_shows_what_it_wrote_only_where_it_fails(tmp_path):
    good = in_setup("show_progress bash -c 'echo noise'", tmp_path)
    assert good.returncode == 0 and "noise" not in good.stdout + good.stderr
    bad = in_setup("show_progress bash -c 'echo the reason; exit 3'", tmp_path)
    assert bad.returncode == 3 and bad.stderr == "the reason\n"


def test_the_quickstart_ends_with_what_was_learned_and_what_to_try(tmp_path):
    summary = {"before": 0.371, "after": 0.695, "steps": 2, "mask": "proximity=kl direction=predicted delta=0.15"}
    steps = [{"mask/outside": 0.003, "mask/masked": 0.002, "mask/disagree": 0.0001}]
    steps.append({"mask/outside": 0.005, "mask/masked": 0.003, "mask/disagree": None})
    lines = [{"step": 0, "data": {"val-core/sort/acc/mean@16": 0.371}}]
    lines += [{"step": i + 1, "data": step} for i, step in enumerate(steps)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def said():
        done = subprocess.run([ROOT / "tools" / "invitation", tmp_path], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said() == ""  # stopped before its end
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    text = said()
    assert "37.1% were right before training and 69.5% after 2 steps" in text
    assert "4.00 were outside" in text and "2.50 were masked" in text and "On 0.10 of 1,000 the ratio" in text
    assert str(tmp_path / "report.html") in text and "import augur" in text
    commands = [line for line in text.splitlines() if line.startswith(("  build/augur", "  ./quickstart"))]
    assert len(commands) == 3 and (ROOT / "recipes" / "compare-tiny.yaml").exists()
