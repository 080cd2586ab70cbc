"""Reward workers for a function that lives in this process, as augur.train(reward=function) takes it.

A process forked before the engine starts its threads forks a worker whenever the engine asks for one over a socket, so
that closures and what a notebook defined work as they are.
"""

import os
import signal
import socket
import struct
import sys
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads; the child touches none of their locks
            self._pid = os.fork()
        if self._pid == 0:
            self._ours.close()
            _in_child(lambda: _serve(theirs, function))
        theirs.close()
        self.fd = self._ours.fileno()

    def close(self) -> None:
        self._ours.shutdown(socket.SHUT_RDWR)  # told also where another fork of this process holds the socket
        self._ours.close()
        os.waitpid(self._pid, 0)


def _in_child(work: Callable[[], None]) -> None:
    code = 1
    try:
        os.setsid()
        _reward_worker.prepare()
        work()
        code = 0
    finally:
        os._exit(code)


def _serve(connection: socket.socket, function: Callable) -> None:
    os.dup2(2, 1)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # a notebook's have threads
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
