"""Runs a reward function for the engine: `python _reward_worker.py FILE.py FUNCTION`, descriptor 3 being a socket.

Both ways go JSON objects, each behind its length in four bytes. The first answer tells whether the function could be
loaded, and whether it takes groups; each further one is the score of a response, or of the responses of a group, in the
order they were asked for. Imports nothing but the standard library, so that starting again costs little.
"""

import asyncio
import ctypes
import faulthandler
import functools
import importlib.util
import inspect
import io
import json
import math
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable
from numbers import Number
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

_SOCKET = 3
_PR_SET_PDEATHSIG = 1
_MOST = 1e18  # squares of larger ones leave float32
_NOT_SCORED = {"score": None, "figures": {}, "answer": None}


class Unusable(Exception):
    """Why the function cannot be a reward."""


def load(file: str, name: str) -> Callable:
    """The function of that name in a file, which finds the modules next to it as a script would."""
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    name_of_module = f"reward_{path.stem}" if path.stem in sys.modules else path.stem  # a math.py replaces no other
    spec = importlib.util.spec_from_file_location(name_of_module, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name_of_module] = module
    spec.loader.exec_module(module)
    function = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if function is None:
        names = [n for n, value in vars(module).items() if inspect.isfunction(value) and not n.startswith("_")]
        raise Unusable(f"defines no '{name}'; it has {', '.join(names) or 'no function'}")
    return function


class Reward(NamedTuple):
    call: Callable[[list[dict]], tuple[list, dict[str, float]]]  # a result for each response, and figures of them all
    takes_groups: bool  # in one call


def adapt(function: Callable) -> Reward:
    """What calls the function, by the parameters it takes: TRL's or verl's."""
    if not callable(function):
        raise Unusable("is no function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some builtins
        raise Unusable(f"{function!r} does not tell its parameters; give a function written in Python") from None
    names = {p.name for p in parameters if p.kind != p.POSITIONAL_ONLY}
    takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters)
    required = {p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}

    def chosen(arguments: dict) -> dict:
        return arguments if takes_all else {k: v for k, v in arguments.items() if k in names}

    if "solution_str" in names:
        return Reward(lambda responses: ([function(**chosen(_verl_arguments(r))) for r in responses], {}), False)
    if names & {"completions", "completion_ids"} or (takes_all and required <= {"prompts"}):

        def call(responses: list[dict]) -> tuple[list, dict[str, float]]:
            log = MetricLog()
            scores = function(**chosen(_trl_arguments(responses) | _trl_services(responses, log)))
            return _listed(scores, len(responses)), log.means()

        return Reward(call, True)
    listed = ", ".join(p.name for p in parameters)
    raise Unusable(
        f"takes ({listed}), which is neither TRL's f(prompts, completions, **columns) nor verl's "
        "f(data_source, solution_str, ground_truth, extra_info)"
    )


def _verl_arguments(response: dict) -> dict:
    return {
        "data_source": response["data_source"],
        "solution_str": response["text"],
        "ground_truth": response["ground_truth"],
        "extra_info": response["extra_info"] or {},
    }


def _trl_arguments(responses: list[dict]) -> dict:
    prompts, completions = [r["prompt"] for r in responses], [r["text"] for r in responses]
    if not isinstance(prompts[0], str):  # conversations, and so is what continues them
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    names = [name for name in responses[0]["columns"] if name not in ("prompt", "completion")]
    columns = {name: [r["columns"][name] for r in responses] for name in names}
    ids = [r["tokens"] for r in responses]
    return {**columns, "prompts": prompts, "completions": completions, "completion_ids": ids}


class MetricLog:
    """What a function logs of the responses of a call."""

    def __init__(self):
        self._values: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        number = _figure(value)
        if number is not None and name != "acc":  # as a figure of each response it would call all of them right
            self._values.setdefault(str(name), []).append(number)

    def means(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self._values.items()}


def _trl_services(responses: list[dict], log: MetricLog) -> dict:
    """What TRL passes with the columns."""
    return {
        "trainer_state": SimpleNamespace(**responses[0]["trainer_state"]),
        "log_extra": lambda column, values: None,  # its table of completions; log.tokens has its own
        "log_metric": log.add,
    }


@functools.cache
def _runner() -> asyncio.Runner:
    """One event loop for all calls in this process: clients keep connections that belong to it."""
    return asyncio.Runner()


def _awaited(result: object) -> object:
    return _runner().run(result) if isinstance(result, Coroutine) else result


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _listed(scores: object, count: int) -> list:
    scores = _awaited(scores)
    if isinstance(scores, dict | str) or not isinstance(scores, Iterable):
        raise TypeError(f"a list of scores was expected, not {scores!r}")
    scores = list(scores)
    if len(scores) != count:
        raise ValueError(f"{_counted(len(scores), 'score')} came back for {_counted(count, 'completion')}")
    return scores


def _finite(value: object) -> float:
    if value is None or isinstance(value, str | bytes):
        raise TypeError(f"{value!r} is no score")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no score")
    return number


def _score(value: object) -> float:
    number = _finite(value)
    if abs(number) > _MOST:
        raise ValueError(f"{number} is no score: beyond {_MOST:g} the spread of a group cannot be told")
    return number


def _figure(value: object) -> float | None:
    try:
        return _finite(value)
    except (TypeError, ValueError, OverflowError):  # an array, or not finite: nothing to average
        return None


def result_of(score: object) -> dict:
    """A score, or verl's dict with one, as the engine reads it."""
    score = _awaited(score)
    figures, answer = {}, None
    if isinstance(score, dict):
        if "score" not in score:
            raise KeyError(f"the result has no 'score', only {', '.join(map(str, score))}")
        for name, value in score.items():
            is_number = isinstance(value, Number) or hasattr(value, "item")
            if name != "score" and is_number and _figure(value) is not None:
                figures[str(name)] = _figure(value)
        answer = None if score.get("pred") is None else str(score["pred"])
        score = score["score"]
    elif isinstance(score, list | tuple) and score:
        score = score[0]  # as verl does
    return {"score": _score(score), "figures": figures, "answer": answer}


def _described(error: BaseException) -> dict:
    """The traceback without this file's frames."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    text = "".join(_cut(part, 2000) for part in traceback.format_exception(type(error), error, frames))
    return {"error": _cut(traceback.format_exception_only(type(error), error)[-1].strip(), 200), "traceback": text}


def _cut(text: str, most: int) -> str:
    """What is longer, an exception that quotes its data, without the rest."""
    line_end = "\n" if text.endswith("\n") else ""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most:,} more characters){line_end}"


def serve(connection: socket.socket, make: Callable[[], Callable]) -> None:
    """Loads the function and answers until the engine closes its end."""

    worker = os.getpid()

    def send(answer: dict) -> None:
        if os.getpid() != worker:  # a fork that the function made and that came back from it: nobody asked it
            sys.stdout.flush()
            os._exit(0)
        body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")  # lone surrogates are no UTF-8
        connection.sendall(struct.pack("<I", len(body)) + body)

    try:
        reward = adapt(make())
        send({"ready": True, "groups": reward.takes_groups})
    except Unusable as reason:
        send({"unusable": str(reason)})
        return
    except BaseException as error:
        send(_described(error))
        return
    requests = connection.makefile("rb")
    while header := requests.read(4):
        send(_answer(reward, json.loads(requests.read(struct.unpack("<I", header)[0]))))


def _answer(reward: Reward, request: dict) -> dict:
    """Of a group whose call fails, the failure alone: the engine asks for its responses one by one then."""
    group = request.get("group")
    try:
        scores, figures = reward.call(group or [request])
    except BaseException as error:
        return _described(error)
    may_lack = reward.takes_groups  # TRL's None: not applicable; in a function of verl's it is a forgotten return
    answers = [_NOT_SCORED if score is None and may_lack else _result_or_fault(score, figures) for score in scores]
    return {"group": answers} if group else answers[0]


def _result_or_fault(score: object, figures: dict[str, float]) -> dict:
    try:
        result = result_of(score)
        return result | {"figures": figures | result["figures"]}
    except BaseException as error:
        return _described(error)


class _Output(io.FileIO):
    """A descriptor that takes what nobody reads any more: the engine notices that itself, and stops."""

    def write(self, data: bytes) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def output(descriptor: int) -> io.TextIOWrapper:
    raw = io.BufferedWriter(_Output(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, errors="backslashreplace", line_buffering=True)


def _end_children_with(worker: int) -> None:
    """What the function starts ends with its process, however that ends: another process of the group, no child of it,
    waits for that. What leaves the group (setsid) is not reached."""
    try:
        watched = os.pidfd_open(worker)
    except OSError:  # an old kernel, or a sandbox
        return
    child = os.fork()
    if child:
        os.close(watched)
        os.waitpid(child, 0)
        return
    try:
        if os.getpgid(worker) == worker and os.fork() == 0:
            os.dup2(watched, 3)
            os.closerange(4, 2**16)
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nothing, descriptor)
            select.select([3], [], [])
            os.killpg(worker, signal.SIGKILL)
    finally:
        os._exit(0)


def prepare() -> None:
    """Ends with the engine, whatever the function does; leaves Ctrl-C to it; tells where it crashed."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    _end_children_with(os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(2)  # sys.stderr may be a notebook's, without a descriptor


if __name__ == "__main__":
    package = str(Path(__file__).parent)
    sys.path = [entry for entry in sys.path if entry != package]  # its trl and verl are not those a function imports
    prepare()
    sys.stdout, sys.stderr = output(1), output(2)
    serve(socket.socket(fileno=_SOCKET), lambda: load(sys.argv[1], sys.argv[2]))
    sys.stdout.flush()
