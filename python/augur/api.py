"""The engine from Python: train, generate, evaluate."""

import inspect
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike, fspath
from pathlib import Path

import torch

from augur import _notebook, _processes
from augur._engine import Error, call
from augur._reward_server import RewardServer
from augur._reward_worker import Unusable
from augur.masks import MaskRule
from augur.runs import Run

Config = str | PathLike | Mapping


def train(
    config: Config,
    *overrides: str,
    reward: Callable | str | None = None,
    on_step: Callable[..., None] | None = None,
) -> Run:
    """`augur train`: runs, or goes on with, a configuration.

    config: a YAML file, or a mapping of its sections ({"train": {"steps": 40}} or {"train.steps": 40}).
    overrides: "key=value", as on the command line.
    reward: a function that scores responses, or "FILE.py:FUNCTION" (reward.python). Its parameters tell how to call it:
        TRL's f(prompts, completions, **columns) -> list[float], or verl's f(data_source, solution_str, ground_truth,
        extra_info), which may return a dict with a "score". It runs in processes forked from this one.
    on_step: called after each step with its metrics, or with the step's number and its metrics where it takes two
        arguments. What it raises ends the run, saved, and is raised here.

    Ctrl-C saves and returns the run as it stands, with run.stopped_by; the same call goes on from there. Before the run
    began it is KeyboardInterrupt. Errors are augur.Error, in the words of the command line.
    """
    for text in overrides:
        if not isinstance(text, str) or text.startswith("-"):
            raise Error(f"{text!r}: is not of the form key=value; write e.g. 'train.steps=100'")
    if on_step is not None and not callable(on_step):
        raise Error(f"on_step: {on_step!r} is no function; give one that takes a step's metrics")
    if on_step is not None and any(map(inspect.iscoroutinefunction, (on_step, type(on_step).__call__))):
        raise Error(f"on_step: {on_step!r} is a coroutine, which nobody would await; give a plain function")
    bar = _notebook.progress_bar("train")
    if bar:
        overrides = ("log.console=false", *overrides)
    takes_step = on_step is not None and _required_parameters(on_step) > 1
    if on_step is not None:
        _check_callback(on_step, (1, {}) if takes_step else ({},))

    def step(number: int, steps: int, metrics: dict) -> None:
        if bar:
            bar.update(number, steps, _figures(metrics))
        if on_step is None or number == 0:
            return
        if takes_step:
            on_step(number, metrics)
        else:
            on_step({"step": number, **metrics})

    with tempfile.TemporaryDirectory() as scratch, _scored_by(reward) as (function, server):
        file, name = _config_file(config, Path(scratch))
        try:
            scored = [f"reward.python={function}"] if function else []
            result = call(["train", file, *overrides, *scored], step, server)
        except Error as error:
            raise Error(name(str(error))) from None
    if result["stopped_by"] and not (Path(result["dir"]) / "config.yaml").exists():
        raise KeyboardInterrupt(f"{result['stopped_by']} came before the run began")
    return Run(result["dir"], result["stopped_by"] or None)


def generate(model: str | PathLike, prompts: str | Sequence, **options: object) -> list[dict]:
    """`augur generate`: responses to prompts, ordered by prompt and sample.

    prompts: texts, conversations (lists of {"role", "content"}) or sequences of token ids; or one of them.
    options: the command's flags (samples=8, max_tokens=256, temperature=1, greedy=True, seed=0, chat=True, stop=[...],
        top_logprobs=20, device="cpu", ...).

    Each response is a dict with the keys of the command's output: prompt, sample, prompt_tokens, tokens, text (unless
    prompts are token ids), logprobs, spans, temperature, weight_version, finish_reason. With top_logprobs also
    support_ids, int32 [tokens, K+1], and support_logprobs, float32, as augur.decide and augur.policy_loss take them.

    After augur.join() all processes call it together, with the same arguments; the first gets the responses, the others
    an empty list.
    """
    if not _can_be_listed(prompts):
        raise Error(f"prompts: is a {type(prompts).__name__}; give texts, conversations or lists of token ids")
    prompts = [_plain(prompt) for prompt in ([prompts] if isinstance(prompts, str | Mapping) else prompts)]
    if _is_tokens(prompts) or (prompts and all(isinstance(message, Mapping) for message in prompts)):
        prompts = [prompts]
    if not prompts and _processes.alone():
        return []
    _refuse_given("generate", options, ("prompt", "data", "tokens_input", "output"))
    columns = 1 + _count("top_logprobs", options.get("top_logprobs"))
    is_tokens = [_is_tokens(prompt) for prompt in prompts]
    if any(is_tokens):
        is_tokens = [known or prompt == [] for known, prompt in zip(is_tokens, prompts, strict=True)]
    if any(is_tokens) and not all(is_tokens):
        first = is_tokens.index(not is_tokens[0])
        raise Error(f"prompts:{first + 1}: token ids and texts cannot be mixed; generate them in two calls")
    key, flag = ("tokens", "--tokens-input") if is_tokens[:1] == [True] else ("prompt", "--data")
    with tempfile.TemporaryDirectory() as scratch:
        file, output = Path(scratch) / "prompts.jsonl", Path(scratch) / "rollouts.jsonl"
        file.write_text(_json_lines("prompts", ({key: prompt} for prompt in prompts)), encoding="utf-8")
        try:
            call(["generate", _path("model", model), flag, fspath(file), "--output", fspath(output), *_flags(options)])
        except Error as error:
            raise Error(_about_prompts(str(error), file)) from None
        if not _processes.is_first():
            return []
        with open(output, encoding="utf-8") as lines:
            rollouts = [_rollout(json.loads(line), columns) for line in lines]
        for rollout in rollouts:
            if "error" in rollout:
                rollout["error"] = _about_prompts(rollout["error"], file)
        _tell(rollout["error"] for rollout in rollouts if "error" in rollout)
        return rollouts


def evaluate(
    model: str | PathLike,
    data: str | PathLike | Sequence,
    *,
    reward: Callable | str | None = None,
    table: bool = False,
    **options: object,
) -> dict:
    """`augur eval`: avg@k, maj@k and pass@k of a model, overall and by data source, as the command's JSON has them.

    data: a JSONL or Parquet file, a task, or a list of them; or rows ({"prompt", "answer", ...}).
    reward: a function that scores the responses, as train takes it, in place of a verifier.
    table: print the command's table to standard output, too.
    options: the command's flags (samples=16, temperature=1, max_tokens=256, verifier="exact", ...).

    After augur.join() all processes call it together, with the same arguments; the first gets the figures, the others
    an empty dict.
    """
    _refuse_given("evaluate", options, ("no_table",))
    with tempfile.TemporaryDirectory() as scratch, _scored_by(reward) as (function, server):
        file = Path(scratch) / "data.jsonl"
        if not (isinstance(data, PathLike) or _can_be_listed(data)):
            raise Error(f"data: is a {type(data).__name__}; give rows, a file or a task")
        files = [data] if isinstance(data, str | PathLike | Mapping) else list(data)
        if not files:
            raise Error("data: holds nothing to evaluate on; give rows, a file or a task")
        if all(isinstance(row, Mapping) for row in files):
            file.write_text(_json_lines("data", files), encoding="utf-8")
            files = [file]
        for place, item in enumerate(files, 1):
            if not isinstance(item, str | PathLike):
                kind = "rows and files cannot be mixed" if isinstance(item, Mapping) else f"{item!r} is no data"
                raise Error(f"data:{place}: {kind}; give rows, or files and tasks")
        try:
            scored = {"reward": function, "no_table": not table, **options}
            figures = call(
                ["eval", _path("model", model), "--data", *(_path("data", file) for file in files), *_flags(scored)],
                reward_server=server,
            )
        except Error as error:
            raise Error(str(error).replace(fspath(file), "data")) from None
        if "failed" in figures:
            figures["failed"] = [fault.replace(fspath(file), "data") for fault in figures["failed"]]
            _tell(figures["failed"])
        return figures


def _refuse_given(call: str, options: Mapping[str, object], own: Sequence[str]) -> None:
    """Flags that the call sets itself would be given twice."""
    for name in options:
        if name.replace("-", "_") in own:
            raise Error(f"{name}: augur.{call} sets this itself, from its arguments; leave it out")


def _can_be_listed(value: object) -> bool:
    try:
        iter(value)  # type: ignore[call-overload]  also what has __getitem__ alone, such as torch's Subset
    except TypeError:
        return False
    return not isinstance(value, bytes)


def _tell(faults: Iterable[str]) -> None:
    """As the command does, each once."""
    for fault in dict.fromkeys(faults):
        print(f"augur: {fault}", file=sys.stderr)


@contextmanager
def _scored_by(reward: Callable | str | None) -> Iterator[tuple[str | None, int | None]]:
    """What says which function scores, and the server that forks workers for it where it is one of this process."""
    if reward is None or isinstance(reward, str):
        yield reward, None
        return
    if isinstance(reward, list | tuple):
        raise Error("reward: is a list; give one function, which may call several and add up their scores")
    try:
        server = RewardServer(reward)
    except Unusable as reason:
        raise Error(f"reward: {reason}") from None
    try:
        yield f"function {getattr(reward, '__qualname__', type(reward).__name__)}", server.fd
    finally:
        server.close()


def _about_prompts(message: str, file: Path) -> str:
    """A message about the file that prompts were written to, or a line of it, as one about them."""
    return re.sub(r"^line (\d+)", r"prompts:\1", message.replace(fspath(file), "prompts"))


def _config_file(config: Config, scratch: Path) -> tuple[str, Callable[[str], str]]:
    """The configuration as a file, and what makes a message about that file one about `config`."""
    if not isinstance(config, Mapping):
        return _path("config", config), lambda message: message
    sections: dict[str, object] = {}
    for key, value in config.items():
        section, _, name = str(key).partition(".")
        entry = _plain({name: value} if name else value)
        if key == "extends" and isinstance(entry, str):
            entry = fspath(Path(entry).absolute())  # of the caller's directory, not of the file's below
        before = sections.get(section)
        if isinstance(entry, dict) and isinstance(before, str):  # mask: NAME, and keys that change it
            before = {"preset": before}
        elif isinstance(entry, str) and isinstance(before, dict):
            entry = {"preset": entry}
        if isinstance(entry, dict):
            if before is not None and not isinstance(before, dict):
                raise Error(f"config: {section}: is a section, and {before!r} is given for it; give a dict of its keys")
            entry = (before or {}) | {k: v for k, v in entry.items() if v is not None}
        sections[section] = entry
    for section, key in (("data", "train"), ("eval", "files")):
        keys = sections.get(section)
        files = keys.get(key) if isinstance(keys, dict) else None
        for item in files if isinstance(files, list) else [files]:
            if not isinstance(item, str | None):
                what = "a row" if isinstance(item, dict) else f"a {type(item).__name__}"
                raise Error(f"config: {section}.{key}: names files, and {what} is given; write rows to a JSONL file")
    path = scratch / "train.yaml"  # the run's directory is runs/train where run.dir is not given
    try:
        text = json.dumps(sections, indent=1, ensure_ascii=False)
        path.write_text(text, encoding="utf-8")
    except (TypeError, UnicodeEncodeError) as fault:
        raise Error(f"config: {fault}; give numbers, texts, lists and dicts") from None
    if "\\u0000" in text:  # as JSON writes it
        raise Error("config: holds a NUL character; leave it out")
    return fspath(path), lambda message: re.sub(re.escape(fspath(path)) + r"(:\d+)?", "config", message)


def _path(name: str, value: object) -> str:
    """A file's or model's name, which no command may take for a flag."""
    if not isinstance(value, str | PathLike):
        raise Error(f"{name}: is a {type(value).__name__}; give a path or a name")
    path = fspath(value)
    if not path:
        raise Error(f"{name}: is empty; give a path or a name")
    return f"./{path}" if path.startswith("-") else path


def _count(name: str, value: object) -> int:
    try:
        return int(value or 0)
    except (TypeError, ValueError):
        raise Error(f"{name}: {value!r} is no number; give how many") from None


def _plain(value: object) -> object:
    """What JSON can write, of paths, tuples, mask rules and the numbers of numpy and torch."""
    if isinstance(value, MaskRule):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, PathLike):
        return fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _without_nan(value: object) -> object:
    """With None where a table has a gap, which pandas marks by NaN."""
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if value != value else value


def _json_lines(name: str, rows: Iterable) -> str:
    try:
        return "".join(json.dumps(_without_nan(_plain(row))) + "\n" for row in rows)
    except TypeError as fault:
        raise Error(f"{name}: {fault}; give texts, numbers, lists and dicts") from None


_BOOLEAN_VALUES = {"thinking"}  # flags that take true or false, and without either leave it to the model


def _flags(options: Mapping[str, object]) -> list[str]:
    flags = []
    for name, value in options.items():
        if name == "help":
            raise Error("help: is no option here; help(augur) and `augur COMMAND --help` tell them")
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool) and name in _BOOLEAN_VALUES:
            flags.append(f"{flag}={str(value).lower()}")
        elif value is True:
            flags.append(flag)
        elif value is not False and value is not None:
            value = _plain(value)
            values = value if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else [value]
            flags += [f"{flag}={item}" for item in values]
    return flags


def _is_tokens(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(isinstance(token, int) for token in prompt)


def _rollout(line: dict, columns: int) -> dict:
    if "support_ids" in line:
        rows = [[float("-inf") if value is None else value for value in row] for row in line["support_logprobs"]]
        shape = (len(rows), columns)  # also of a response without tokens
        line["support_ids"] = torch.tensor(line["support_ids"], dtype=torch.int32).reshape(shape)
        line["support_logprobs"] = torch.tensor(rows, dtype=torch.float32).reshape(shape)
    return line


def _check_callback(on_step: Callable, arguments: tuple) -> None:
    try:
        signature = inspect.signature(on_step)
    except ValueError:  # some builtins tell none
        return
    try:
        signature.bind(*arguments)
    except TypeError as fault:
        raise Error(f"on_step: {fault}; give a function of a step's metrics, or of its number and them") from None


def _required_parameters(function: Callable) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
        return sum(p.kind in kinds and p.default is p.empty for p in parameters)
    except ValueError:  # a builtin, such as list.append in some versions
        return 1


def _figures(metrics: Mapping[str, float]) -> str:
    shown = {"reward": "critic/score/mean", "masked": "mask/masked"}
    figures = [f"{name} {metrics[key]:.3f}" for name, key in shown.items() if metrics.get(key) is not None]
    figures += [f"{key} {value:.3f}" for key, value in metrics.items() if "/acc/mean@" in key and value is not None]
    return "  ".join(figures)
