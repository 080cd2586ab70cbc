"""Runs a reward function for the engine: `python _reward_worker.py FILE.py FUNCTION`, descriptor 3 being a socket.

Both ways go JSON objects, each behind its length in four bytes. The first answer tells whether the function could be
loaded; each further one is the score of a response, in the order they were asked for. Imports nothing but the standard
library, so that starting again costs little.
"""

import asyncio
import ctypes
import faulthandler
import importlib.util
import inspect
import json
import math
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from numbers import Number
from pathlib import Path

_SOCKET = 3
_PR_SET_PDEATHSIG = 1


class Unusable(Exception):
    """Why the function cannot be a reward."""


def load(file: str, name: str) -> Callable:
    """The function of that name in a file, which finds the modules beside it as a script would."""
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    function = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if function is None:
        names = [n for n, value in vars(module).items() if inspect.isfunction(value) and not n.startswith("_")]
        raise Unusable(f"defines no '{name}'; it has {', '.join(names) or 'no function'}")
    return function


def adapt(function: Callable) -> Callable[[dict], object]:
    """What calls the function for one response, by the parameters it takes: TRL's or verl's."""
    if not callable(function):
        raise Unusable("is no function")
    parameters = inspect.signature(function).parameters.values()
    names = {p.name for p in parameters}
    takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters)
    required = {p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}

    def chosen(arguments: dict) -> dict:
        return arguments if takes_all else {k: v for k, v in arguments.items() if k in names}

    if "solution_str" in names:
        return lambda response: function(**chosen(_verl_arguments(response)))
    if "completions" in names or (takes_all and required <= {"prompts"}):
        return lambda response: _only(function(**chosen(_trl_arguments(response))))
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


def _trl_arguments(response: dict) -> dict:
    prompt, completion = response["prompt"], response["text"]
    if not isinstance(prompt, str):  # a conversation, and so is what continues it
        completion = [{"role": "assistant", "content": completion}]
    columns = {name: [value] for name, value in response["columns"].items() if name not in ("prompt", "completion")}
    return {**columns, "prompts": [prompt], "completions": [completion], "completion_ids": [response["tokens"]]}


def _only(scores: object) -> object:
    if asyncio.iscoroutine(scores):
        scores = asyncio.run(scores)
    if isinstance(scores, dict | str) or not hasattr(scores, "__len__"):
        raise TypeError(f"a list with one score was expected, not {scores!r}")
    if len(scores) != 1:
        raise ValueError(f"{len(scores)} scores came back for 1 completion")
    return scores[0]


def _number(value: object) -> float:
    if value is None or isinstance(value, str | bytes):
        raise TypeError(f"{value!r} is no score")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no score")
    return number


def result_of(score: object) -> dict:
    """A score, or verl's dict with one, as the engine reads it."""
    if asyncio.iscoroutine(score):
        score = asyncio.run(score)
    figures, answer = {}, None
    if isinstance(score, dict):
        if "score" not in score:
            raise KeyError(f"the result has no 'score', only {', '.join(map(str, score))}")
        for name, value in score.items():
            if name != "score" and (isinstance(value, Number) or hasattr(value, "item")):
                try:
                    figures[str(name)] = _number(value)
                except (TypeError, ValueError):  # an array, or not finite: nothing to average
                    continue
        answer = None if score.get("pred") is None else str(score["pred"])
        score = score["score"]
    elif isinstance(score, list | tuple) and score:
        score = score[0]  # as verl does
    return {"score": _number(score), "figures": figures, "answer": answer}


def _described(error: BaseException) -> dict:
    """The traceback without this file's frames."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    return {"error": traceback.format_exception_only(type(error), error)[-1].strip(), "traceback": text}


def serve(connection: socket.socket, make: Callable[[], Callable]) -> None:
    """Loads the function and answers until the engine closes its end."""

    def send(answer: dict) -> None:
        body = json.dumps(answer).encode()
        connection.sendall(struct.pack("<I", len(body)) + body)

    try:
        score = adapt(make())
        send({"ready": True})
    except Unusable as reason:
        send({"unusable": str(reason)})
        return
    except BaseException as error:
        send(_described(error))
        return
    requests = connection.makefile("rb")
    while header := requests.read(4):
        response = json.loads(requests.read(struct.unpack("<I", header)[0]))
        try:
            answer = result_of(score(response))
        except BaseException as error:
            answer = _described(error)
        send(answer)


def prepare() -> None:
    """Ends with the engine, whatever the function does; leaves Ctrl-C to it; tells where it crashed."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()


if __name__ == "__main__":
    prepare()
    serve(socket.socket(fileno=_SOCKET), lambda: load(sys.argv[1], sys.argv[2]))
    sys.stdout.flush()
