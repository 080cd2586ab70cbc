"""`python -m augur` is the program; torchrun starts several of it."""

import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from conftest import PROGRAM, ROOT, run_augur
from warm_program import WarmProgram

MODEL = ROOT / "models" / "tiny"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}


def run_module(*args, stdin="", before=("-m", "augur"), **environment):
    command = [sys.executable, *before, *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=ENVIRONMENT | environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ["--version"],
        ["--help"],
        ["tokenize", MODEL],
        ["tokenise", MODEL],
        ["score", MODEL, "--treads", "1"],
        ["generate", MODEL, "--prompt", "3 1 2 =", "--max-tokens", "4", "--seed", "7"],
    ],
)
def test_the_program_its_module_and_the_forks_of_the_tests_write_and_return_the_same(args):
    stdin = '{"text": "1 2 3"}\n'
    program = subprocess.run([PROGRAM, *args], input=stdin, capture_output=True, text=True)
    for done in (run_module(*args, stdin=stdin), run_augur(*args, stdin=stdin, check=False)):
        assert (done.returncode, done.stdout, done.stderr) == (program.returncode, program.stdout, program.stderr)


def test_a_program_that_hangs_ends_with_its_test(tmp_path):
    warm = WarmProgram()
    os.mkfifo(tmp_path / "fifo")  # which nobody writes to

    def give_up(*_):
        raise TimeoutError

    warm.run(["--version"], b"", tmp_path, dict(os.environ))  # has loaded the program now
    before = signal.signal(signal.SIGUSR1, give_up)
    timer = threading.Timer(1.5, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(TimeoutError):
            warm.run(["config", str(tmp_path / "fifo")], b"", tmp_path, dict(os.environ))
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
    for args, code in ((["--version"], 0), (["config", "/nowhere"], 2), (["--version"], 0)):
        assert warm.run(args, b"", tmp_path, dict(os.environ)).returncode == code


@pytest.mark.parametrize("times", [1, 9, 19])
def test_a_large_request_reaches_the_program(times):
    environment = {f"LARGE_{i}": "x" * 10_000 for i in range(times)}
    assert run_augur("--version", environment=environment).stdout == run_augur("--version").stdout


@pytest.mark.parametrize("command", [[PROGRAM], [sys.executable, "-m", "augur"]], ids=["program", "module"])
@pytest.mark.parametrize("setting", ["", "GOMP_SPINCOUNT=77", "OMP_WAIT_POLICY=active"])
def test_threads_wait_without_spinning_long_unless_told_to(command, setting):
    """Where others use the cores, OpenMP's usual milliseconds of spinning multiply a step's time."""
    own = {name: value for name, value in ENVIRONMENT.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    told = dict([setting.split("=")]) if setting else {}
    environment = own | told | {"OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, env=environment, check=True)
    spins = int(re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)[1])
    usual = 30000 if platform.machine() == "aarch64" else 1000
    assert spins > 1e6 if "active" in setting else spins == (77 if setting else usual)


def test_one_library_serves_operators_and_program():
    """Both in one process: two copies would register the operators twice, which torch refuses."""
    code = (
        "import augur, torch; torch.ops.augur; from augur import _library; print(_library.run_program(['--version']))"
    )
    done = run_module(before=("-c", code))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [run_augur("--version").stdout.strip(), "0"]


def test_nothing_but_the_c_functions_is_visible():
    """A symbol of another version of a library that torch, too, carries would otherwise be taken for its own."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", PROGRAM.with_name("libaugur_torch.so")], capture_output=True, text=True
    )
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert names and all(name.startswith("augur_") for name in names)


def torchrun(tmp_path: Path, ranks: int, *args):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--no-python"]
    logs = ["--log-dir", tmp_path / "logs", "--redirects", "3"]
    return run_module(*logs, sys.executable, "-m", "augur", *args, before=launcher), tmp_path / "logs"


def rank_logs(logs: Path, name: str) -> list[str]:
    return [path.read_text() for path in sorted(logs.glob(f"*/attempt_0/*/{name}.log"))]


def test_under_torchrun_a_command_for_one_runs_on_the_first_rank(tmp_path):
    done, logs = torchrun(tmp_path, 2, "config", ROOT / "recipes" / "quickstart.yaml")
    assert done.returncode == 0, done.stderr
    first, second = rank_logs(logs, "stdout")
    assert first == run_augur("config", ROOT / "recipes" / "quickstart.yaml").stdout and second == ""
    assert "config runs on one process; the other 1 end here" in rank_logs(logs, "stderr")[0]


@pytest.mark.slow
def test_under_torchrun_an_error_names_its_rank(tmp_path):
    done, logs = torchrun(tmp_path, 2, "config", tmp_path / "none.yaml")
    assert done.returncode != 0
    assert f"augur: rank 0: {tmp_path}/none.yaml" in rank_logs(logs, "stderr")[0]


@pytest.mark.slow
def test_the_engine_knows_the_group_that_python_made(tmp_path):
    """Each rank joins; torch knows the group by the name that the engine was told."""
    code = """
import augur, os, torch, torch.distributed as dist
from augur import _library
told = []
_library.library.augur_set_process_group = lambda *args: told.append(args)
augur.join()
(name, rank, size, gpu, local_size), = told
assert (gpu, local_size) == (False, 2)
total = torch.ops._c10d_functional.all_reduce(torch.tensor([rank + 1.0]), "sum", name.decode())
line = f"{rank} {size} {torch.ops._c10d_functional.wait_tensor(total).item()}\\n"
os.write(1, line.encode())  # whole: the ranks share a pipe
dist.barrier()
os._exit(0)
"""
    (tmp_path / "join.py").write_text(code)
    done = run_module(
        tmp_path / "join.py", before=["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == ["0 2 3.0", "1 2 3.0"]


@pytest.mark.slow
def test_a_group_without_a_cpu_backend_has_one_beside_it(tmp_path):
    """As of init_process_group("nccl"), which sends nothing from a CPU; here "cuda:gloo"."""
    code = """
import augur, os, torch, torch.distributed as dist
from augur import _processes, _library
dist.init_process_group("cuda:gloo")
told = []
_library.library.augur_set_process_group = lambda *args: told.append(args)
_processes.join()
_processes.join()
(name, rank, size, *_), again = told
assert again[0] == name
total = torch.ops._c10d_functional.all_reduce(torch.tensor([rank + 1.0]), "sum", name.decode())
line = f"{rank} {size} {torch.ops._c10d_functional.wait_tensor(total).item()}\\n"
os.write(1, line.encode())
dist.barrier(group=_processes._group_of_all())
os._exit(0)
"""
    (tmp_path / "beside.py").write_text(code)
    done = run_module(
        tmp_path / "beside.py", before=["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == ["0 2 3.0", "1 2 3.0"]


@pytest.mark.slow
@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_while_it_starts_keeps_no_other_node_waiting(tmp_path, dying):
    """Two nodes, each with an agent: their counts of restarts differ, and the store has what was written before."""
    code = """
import os, signal, sys, time
from pathlib import Path
mark = Path(sys.argv[1])
if os.environ["RANK"] == sys.argv[2] and not mark.exists():
    mark.touch()
    time.sleep(6)  # the other has said by then that it is here
    os.kill(os.getpid(), signal.SIGKILL)
import torch.distributed as dist
import augur
augur.join()
dist.barrier()
os.write(1, f"{dist.get_rank()} of {dist.get_world_size()}\\n".encode())
dist.barrier()
os._exit(0)
"""
    (tmp_path / "join.py").write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=2"]
    launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=0", "--monitor-interval=0.2"]
    command = [sys.executable, *launcher, tmp_path / "join.py", tmp_path / "mark", str(dying)]
    nodes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) for _ in range(2)]
    assert sorted(node.communicate(timeout=120)[0].strip() for node in nodes) == ["0 of 2", "1 of 2"]


def test_ranks_that_do_not_come_are_named():
    from augur._processes import _start_name

    store = torch.distributed.HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(TimeoutError, match=r"of 3 ranks these did not come: \[1, 2\]"):
        _start_name(store, 0, 3)


def test_srun_gives_what_torchrun_would():
    from augur._processes import _from_slurm

    environment = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "1",
        "SLURM_STEP_NODELIST": "gpu-a[08-09,11],other",
        "SLURM_NODEID": "2",
        "SLURM_PROCID": "9",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "12",
        "SLURM_STEP_TASKS_PER_NODE": "4(x2),3,1",
    }
    set_ = _from_slurm(environment)
    assert (set_["RANK"], set_["WORLD_SIZE"], set_["LOCAL_RANK"], set_["LOCAL_WORLD_SIZE"]) == ("9", "12", "1", "3")
    assert set_["MASTER_ADDR"] == "gpu-a08" and 1024 < int(set_["MASTER_PORT"]) < 65536
    assert _from_slurm(environment | {"SLURM_STEP_NODELIST": "here,there"})["MASTER_ADDR"] == "here"


def test_ctrl_c_saves_as_in_the_program(tmp_path):
    changes = ["train.steps=500", "rollout.prompts=4", "train.minibatch=4", "eval.files=[]", "checkpoint.every=0"]
    command = [sys.executable, "-m", "augur", "train", ROOT / "recipes" / "quickstart.yaml", *changes]
    process = subprocess.Popen(
        [*map(str, command), f"run.dir={tmp_path}/run", f"model.path={MODEL}", "run.threads=1"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 1):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "stopped by SIGINT" in out
    steps = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert (tmp_path / "run" / "checkpoints" / f"global_step_{steps}").is_dir()


def test_another_torch_is_named_before_the_library_is_loaded():
    code = "import torch; torch.__version__ = '2.99.0+cpu'; import augur"
    done = run_module(code, before=["-c"])
    assert done.returncode == 1
    assert "Augur was built for torch 2.11.0, and this is torch 2.99.0: pip install" in done.stderr.splitlines()[-1]
    done = run_module(code + "_verl", before=["-c"])  # verl's plug-in, whose exception verl notes at DEBUG
    assert "augur.verl could not be loaded, so the loss modes named augur are not there: Augur was" in done.stderr


def test_a_library_that_does_not_load_is_one_line(tmp_path):
    shutil.copytree(ROOT / "python" / "augur", tmp_path / "augur")
    (tmp_path / "augur" / "libaugur_torch.so").write_bytes(b"no library")
    done = subprocess.run(
        [sys.executable, "-c", "import augur"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": tmp_path},
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ") and "libaugur_torch.so does not load with torch 2.11.0" in last


def test_what_openmp_reads_is_left_to_no_child():
    code = "import augur, os, subprocess; print(subprocess.run(['printenv', 'GOMP_SPINCOUNT']).returncode)"
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "1\n", done.stderr
