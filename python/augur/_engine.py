"""Calls of the program in this process: errors as exceptions, results as values."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from augur import _processes
from augur._library import ERROR_HOOK, RESULT_HOOK, STEP_HOOK, Hooks, library, run_program

_one_at_a_time = threading.Lock()
_callers: list[int] = []  # the thread whose call is under way
_callback_since: list[float] = []  # when the callback under way began, if there is one
_PATIENCE = 10.0  # seconds that a call waits while a callback runs, which may be waiting for it
_FAILED, _INTERRUPTED = 2, 130
_TRAINS = ("train", "sft")
_trained: list[str] = []  # in this process
_trained_before_fork: list[str] = []  # whose threads did not come along: a parallel loop would wait for them for ever
_in_fork = False
_forked_amid_call = False  # of a thread that did not come along, here or further up


def busy() -> bool:
    """Whether a call is under way, here or in what this is a fork of."""
    return _forked_amid_call or _one_at_a_time.locked()


def _after_fork() -> None:
    global _in_fork, _forked_amid_call, _one_at_a_time
    _in_fork, _forked_amid_call = True, busy()
    _one_at_a_time = threading.Lock()
    _callers.clear()
    _callback_since.clear()
    _trained_before_fork.extend(_trained)


os.register_at_fork(after_in_child=_after_fork)


class Error(ValueError):
    """Something the caller can mend: what is wrong, where, and what to do, in the words of the command line."""

    __module__ = "augur"  # as tracebacks name it


def _run(args: list[str], hooks: Hooks) -> int:
    """In a fork on a thread of its own: OpenMP keeps threads by the thread that called it, and on this one would wait
    for those of the parent for ever."""
    codes: list[int] = []

    def run() -> None:
        _callers.append(threading.get_ident())
        try:
            codes.append(run_program(args, hooks))
        finally:
            _callers.pop()

    if not _in_fork:
        run()
        return codes[0]
    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt:
            library.augur_request_stop()
    return codes[0]


def _refuse(args: list[str], why: str) -> NoReturn:
    raise Error(f"augur {args[0]}: {why}; call it after the run, or in another process")


@contextmanager
def _turn(args: list[str]) -> Iterator[None]:
    """Waits until no other call is under way. A callback of that call may be waiting for this one: then neither would
    ever end."""
    turn = _one_at_a_time
    while not turn.acquire(timeout=0.1):
        if _callback_since and time.monotonic() - _callback_since[0] > _PATIENCE:
            _refuse(
                args, f"a callback of the run under way takes over {_PATIENCE:g} s and may be waiting for this call"
            )
    try:
        yield
    finally:
        turn.release()


def call_apart(args: list[str]) -> None:
    """Runs `augur ARGS` in a process of its own, for what need not wait for the call under way."""
    alone = {name: value for name, value in os.environ.items() if name not in _processes.VARIABLES}
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [alone.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "augur", *args]
    done = subprocess.run(command, env=alone | {"PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise Error(done.stderr.strip().removeprefix("augur: ") or f"augur {args[0]}: exit code {done.returncode}")


def call(
    args: list[str], on_step: Callable[[int, int, dict], None] | None = None, reward_server: int | None = None
) -> dict:
    """Runs `augur ARGS` and returns what the command made. An exception of on_step ends the run as Ctrl-C does, saved,
    and is raised then. reward_server: the socket of the RewardServer that forks the command's workers."""
    for arg in args:
        if "\0" in arg:
            raise Error(f"{arg!r}: holds a NUL character; leave it out")
    if _forked_amid_call:
        what = f"augur {args[0]}: cannot run in a fork that was made while a call was under way"
        raise Error(f"{what}; fork before it, or start the process by multiprocessing's spawn")
    if args[0] in _TRAINS and _trained_before_fork:
        what = f"augur {args[0]}: cannot run in a fork of a process that has trained"
        raise Error(f"{what}; start it by multiprocessing's spawn, or train in the child alone")
    if threading.get_ident() in _callers:
        _refuse(args, "cannot run inside a callback of the run under way")
    messages: list[bytes] = []
    results: list[bytes] = [b"{}"]
    raised: list[BaseException] = []

    def step(number: int, steps: int, metrics: bytes) -> None:
        if raised:
            return
        _callback_since.append(time.monotonic())
        try:
            on_step(number, steps, json.loads(metrics))
        except BaseException as error:
            raised.append(error)
            library.augur_request_stop()
        finally:
            _callback_since.clear()

    # Ctrl-C may be answered in any line of Python, and what is raised in a hook is lost: these two run none.
    hooks = Hooks(ERROR_HOOK(messages.append), STEP_HOOK(step) if on_step else STEP_HOOK(), RESULT_HOOK(results.append))
    with _turn(args):
        try:
            _trained.extend(args[:1] if args[0] in _TRAINS else [])
            library.augur_set_reward_server(-1 if reward_server is None else reward_server)
            code = _run(args, hooks)
        finally:
            library.augur_set_reward_server(-1)
    if raised:
        raise raised[0]
    if messages:
        raise Error("\n".join(message.decode() for message in messages))
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    # The first rank also returns so where some prompts failed; generate leaves a file then, and others a result.
    if code == _FAILED and not _processes.alone():
        made = len(results) > 1 or (args[0] == "generate" and Path(args[args.index("--output") + 1]).exists())
        if not (_processes.is_first() and made):
            raise Error(f"augur {args[0]}: failed on another rank, which says why")
    return json.loads(results[-1])
