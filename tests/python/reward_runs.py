"""Runs that Python functions reward: the functions, and a configuration for them."""

from pathlib import Path

from conftest import run_augur
from train_runs import (
    ANSWER,
    make_guesser,
    read_metrics,
    small_config,
    without_times,
    write_guesses,
)

FUNCTIONS = f"""
import asyncio, os, time

loops = []  # that live on, so that no other takes the place of one

def trl(prompts, completions, answer, **columns):
    assert len(prompts) == len(completions) == len(answer) == len(columns["completion_ids"])
    return [float(text.strip() == right) for text, right in zip(completions, answer)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "guess"
    return float(solution_str.strip() == ground_truth)

def details(data_source, solution_str, ground_truth, extra_info):
    right = solution_str.strip() == ground_truth
    return {{"score": 2 * right - 1, "acc": right, "length": len(solution_str), "pred": solution_str, "note": "text"}}

def helper(line):
    raise ValueError(f"cannot score {{line!r}}")

def raises(completions, **columns):
    return [0.5 if text.strip() == "{ANSWER}" else helper(text) for text in completions]

def fails(completions, **columns):
    raise ValueError("always")

def dies(completions, **columns):
    return [0.5 if text.strip() == "{ANSWER}" else os._exit(3) for text in completions]

def hangs(completions, **columns):
    return [0.5 if text.strip() == "{ANSWER}" else time.sleep(600) for text in completions]

def sleeps(completions, **columns):
    open(os.environ["STAMPS"], "w").close()
    time.sleep(600)

def stamps(completions, **columns):
    with open(os.environ["STAMPS"], "a") as file:
        file.write(f"{{time.monotonic()}} {{len(completions)}}\\n")
    return [0.0] * len(completions)

def noted(completions, note, **columns):
    return [float(row["value"]) for row in note]

def among(prompts, completions, **columns):
    assert len(set(prompts)) == 1
    return [float(sum(other < text for other in completions)) for text in completions]

def seldom(completions, completion_ids, **columns):
    return [None if i % 2 else float(ids[:1] == [{ANSWER}]) for i, ids in enumerate(completion_ids)]

def right_or_none(completions, answer, **columns):
    return [1.0 if c.strip() == a.strip() else None for c, a in zip(completions, answer)]

def never(completions, **columns):
    return [None] * len(completions)

def forgets(data_source, solution_str, ground_truth, extra_info):
    pass

def lazily(completions, **columns):
    return (0.5 for _ in completions)

def odd(data_source, solution_str, ground_truth, extra_info):
    return {{"score": 0.5, "pred": "\\ud800", "huge": 10**400}}

def of_a_dict(completions, **columns):
    return {{i: 0.5 for i in range(len(completions))}}.values()

def overlong(completion_ids, **columns):
    return [0.5 for _ in completion_ids]

def served(completions, trainer_state, log_extra, log_metric, **columns):
    log_extra("length", [len(text) for text in completions])
    log_metric("logged", 1.0)
    log_metric("logged", 2.0)
    return [0.5 for _ in completions]

def at_step(completions, trainer_state, **columns):
    return [trainer_state.global_step + trainer_state.max_steps / 100 for _ in completions]

def by_step(completions, trainer_state, answer, **columns):
    bonus = trainer_state.global_step / trainer_state.max_steps
    return [float(text.strip() == right) + bonus * len(text) for text, right in zip(completions, answer)]

async def awaited(completions, **columns):
    loops.append(asyncio.get_running_loop())
    return [0.5 if loops[0] is loops[-1] else 0.0 for _ in completions]

async def awaited_each(data_source, solution_str, ground_truth, extra_info):
    loops.append(asyncio.get_running_loop())
    return 0.5 if loops[0] is loops[-1] else 0.0

def unanswered(completions, answer, ground_truth, **columns):
    return [0.5 if right is None and truth is None else 0.0 for right, truth in zip(answer, ground_truth)]

def other(a, b):
    return 0
"""


def guessing(tmp_path: Path) -> dict:
    """Changes to a small configuration: a model that is right about every other time, and its prompts."""
    (tmp_path / "rewards.py").write_text(FUNCTIONS)
    return {
        "policy": make_guesser(tmp_path / "policy"),
        "data__train": f"[{write_guesses(tmp_path / 'data.jsonl')}]",
        "eval__files": "[]",
        "train__steps": 2,
        "reward__overlong_buffer": 0,
        "reward__workers": 2,
    }


def function(tmp_path: Path, name: str) -> str:
    return f"{tmp_path / 'rewards.py'}:{name}"


def trained(tmp_path: Path, settings: dict, name: str, **changes) -> tuple[list[dict], str]:
    """The metrics of a run, and what it said."""
    config = small_config(tmp_path, name=name, **(settings | changes))
    said = run_augur("train", config).stderr
    return without_times(read_metrics(tmp_path / name)), said


def made_by(run: Path) -> set[str]:
    """What is in a run's directory, but for the lock."""
    return {path.name for path in run.iterdir()} - {".lock"} if run.exists() else set()


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()
