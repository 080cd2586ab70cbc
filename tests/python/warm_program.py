"""Starts of build/augur in a fraction of their time: forks of a process that has loaded its library.

A start takes a quarter of a second, in which torch registers its operators; the tests make thousands. Run as a program,
this file is that process: it does what src/cli/main.cc does, once for each request.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_REQUEST = 100_000  # bytes, below what a socket takes at once
READ_WHEN_LOADED = tuple(
    "AUGUR_ CUDA_ DNNL_ GLIBC_ GOMP_ KMP_ LD_ MALLOC_ MKL_ NCCL_ OMP_ ONEDNN_ PYTORCH_ TORCH_".split()
)


def loads_with(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_WHEN_LOADED)}


class WarmProgram:
    def __init__(self) -> None:
        self._loaded_with = loads_with(os.environ)
        self._load()

    def _load(self) -> None:
        self._connection, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._server = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()

    def _end(self, child: int | None) -> None:
        self._server.kill()
        self._server.wait()
        if child is not None:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._connection.close()

    def run(self, args: list[str], input: bytes, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess | None:
        """As subprocess.run; None where only a start of its own would do."""
        request = json.dumps({"args": args, "cwd": str(cwd), "environment": dict(env)}).encode()
        starts_itself = args[:1] in (["analyze"], ["compare"], ["frontier"])  # by the command line of its process
        if starts_itself or loads_with(env) != self._loaded_with or len(request) > LONGEST_REQUEST:
            return None
        if not Path(cwd).is_dir() or any("\0" in arg for arg in args):  # which subprocess refuses
            return None
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = os.pipe(), os.pipe(), os.pipe()
        theirs = [theirs_in, theirs_out, theirs_err]
        socket.send_fds(self._connection, [request], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        with ThreadPoolExecutor(3) as pool:
            pool.submit(write, ours_in, input)
            out, err = pool.submit(read, ours_out), pool.submit(read, ours_err)
            child = None
            try:
                child = int(self._connection.recv(16))
                code = int(self._connection.recv(16))
            except BaseException:  # the test's time is over, say: neither the child nor its answer may stay
                self._end(child)
                self._load()
                raise
        return subprocess.CompletedProcess(args, code, out.result(), err.result())


def write(descriptor: int, data: bytes) -> None:
    with suppress(BrokenPipeError), open(descriptor, "wb") as file:
        file.write(data)


def read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


def become(library: ctypes.CDLL, request: dict, descriptors: list[int]) -> None:
    for to, descriptor in enumerate(descriptors):
        os.dup2(descriptor, to)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    words = [b"augur", *(arg.encode("utf-8", "surrogateescape") for arg in request["args"])]
    code = library.augur_main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None), None)
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def serve(connection: socket.socket) -> None:
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "30000" if os.uname().machine == "aarch64" else "1000")
    library = ctypes.CDLL(str(ROOT / "build/libaugur_torch.so"), ctypes.RTLD_GLOBAL)
    library.augur_set_python(sys.executable.encode(), str(ROOT / "python/augur").encode())
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 3)
        if not request:  # the tests are over
            return
        child = os.fork()
        if child == 0:
            connection.close()
            become(library, json.loads(request), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
