"""Reward workers for a function that lives in this process, as augur.train(reward=function) takes it.

A process forked before the engine starts its threads forks a worker whenever the engine asks for one over a socket, so
that closures and what a notebook defined work as they are.
"""

import os
import queue
import signal
import socket
import struct
import sys
import threading
import warnings
from collections.abc import Callable

from augur import _reward_worker

_REQUEST = struct.Struct("<ci")  # b"s" starts a worker; b"e", pid ends one
_NUMBER = struct.Struct("<i")


class RewardServer:
    """`fd` is the engine's end of the socket."""

    def __init__(self, function: Callable):
        _reward_worker.adapt(function)  # raises where it is no reward function
        self._ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._closed = threading.Event()
        pids: queue.Queue[int | OSError] = queue.Queue()

        # A thread of its own forks: where this one has run parallel loops, a fork of it would wait for ever for the
        # threads that helped. It lives as long as the server, which ends with it (prepare).
        def fork() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the child touches no lock of other threads
                try:
                    pid = os.fork()
                except OSError as fault:
                    return pids.put(fault)
            if pid == 0:
                self._ours.close()
                _in_child(lambda: _serve(theirs, function))
            pids.put(pid)
            self._closed.wait()

        threading.Thread(target=fork, daemon=True, name="augur-reward-server").start()
        self._pid = pids.get()
        theirs.close()
        if isinstance(self._pid, OSError):
            raise self._pid
        self.fd = self._ours.fileno()

    def close(self) -> None:
        self._ours.shutdown(socket.SHUT_RDWR)  # told also where another fork of this process holds the socket
        self._ours.close()
        try:
            os.waitpid(self._pid, 0)
        except ChildProcessError:  # where SIGCHLD is ignored
            pass
        finally:
            self._closed.set()


def _in_child(work: Callable[[], None]) -> None:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it learns nothing of its children's ends
        _reward_worker.prepare()
        work()
        code = 0
    finally:
        os._exit(code)


def _serve(connection: socket.socket, function: Callable) -> None:
    os.dup2(2, 1)
    sys.stdout = sys.stderr = _reward_worker.output(2)  # a notebook's have threads
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the threads of a parallel region did not come along
    while request := connection.recv(_REQUEST.size):
        kind, pid = _REQUEST.unpack(request)
        if kind == b"s":
            _start(connection, function)
        else:
            _end(connection, pid)


def _start(connection: socket.socket, function: Callable) -> None:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        connection.close()
        ours.close()
        _in_child(lambda: _reward_worker.serve(theirs, lambda: function))
    theirs.close()
    socket.send_fds(connection, [_NUMBER.pack(pid)], [ours.fileno()])
    ours.close()


def _end(connection: socket.socket, pid: int) -> None:
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            pass
    connection.send(_NUMBER.pack(os.waitpid(pid, 0)[1]))
