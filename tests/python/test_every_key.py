"""No key is ignored: for every key of docs/configuration.md two values, and the figure or file in which two short runs
that differ in nothing else must differ. A key that the page has and the table lacks fails the test."""

import functools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from safetensors import safe_open

from conftest import PROGRAM, ROOT
from train_runs import make_guesser, make_policy, read_lines

os.environ["WANDB_MODE"] = "offline"
BASE = {
    "run.seed": 0,
    "run.threads": 1,
    "model.precision": "fp32",
    "reward.verifier": "exact",
    "rollout.prompts": 4,
    "rollout.group": 4,
    "rollout.max_tokens": 8,
    "rollout.support": 8,
    "train.steps": 1,
    "train.minibatch": 2,
    "train.lr": 0.01,
    "train.eps": 0.001,
    "mask.preset": "predictive-kl-aggregated",
    "log.console": "false",
    "log.tensorboard": "false",
    "log.tokens": 0,
}
SFT_BASE = {
    "run.seed": 0,
    "run.threads": 1,
    "model.precision": "fp32",
    "sft.steps": 2,
    "sft.batch": 4,
    "sft.lr": 0.01,
    "log.console": "false",
    "log.tensorboard": "false",
}


@dataclass
class Outcome:
    """What a command left behind."""

    run: Path
    code: int
    errors: str
    threads: int  # most at once
    memory: float  # most at once, in MiB

    def figures(self, step: int = -1) -> dict:
        return read_lines(self.run / "metrics.jsonl")[step]["data"]

    @property
    def tokens(self) -> list[dict]:
        return read_lines(self.run / "tokens.jsonl")

    def names(self, pattern: str) -> list[str]:
        return sorted(str(path.relative_to(self.run)) for path in self.run.glob(pattern))


See = Callable[[Outcome], object]


def figure(name: str, step: int = -1) -> See:
    return lambda outcome: outcome.figures(step)[name]


def names_of_figures(prefix: str) -> See:
    return lambda outcome: sorted(name for name in outcome.figures() if name.startswith(prefix))


def lines(outcome: Outcome) -> int:
    return len(read_lines(outcome.run / "metrics.jsonl"))


def weights(outcome: Outcome) -> bytes:
    return (outcome.run / "model" / "model.safetensors").read_bytes()


def checkpoints(outcome: Outcome) -> list[str]:
    return outcome.names("checkpoints/global_step_*")


def texts(outcome: Outcome) -> list[str]:
    return ["".join(token["text"] for token in r["tokens"]) for r in outcome.tokens]


def adapter_names(outcome: Outcome) -> list[str]:
    with safe_open(outcome.run / "adapter" / "adapter_model.safetensors", "pt") as file:
        return sorted(file.keys())


def prompts(outcome: Outcome) -> list[str]:
    return [r["prompt"] for r in outcome.tokens]


def exit_code(outcome: Outcome) -> int:
    return outcome.code


def memory(outcome: Outcome) -> float:
    return outcome.memory


@dataclass
class Case:
    one: object
    two: object
    see: See
    given: dict = field(default_factory=dict)  # settings of both runs
    fails: bool = False  # whether a run may end with an error
    flags: tuple = ()
    before: dict | None = None  # settings of a run in the same directory that comes first
    apart: float = 0  # numbers differ where they are further apart than this


# Responses are kept, and those without an advantage take part.
SHOW = {"log.tokens": 100, "algorithm.entropy_bonus": 1e-6, "train.minibatch": 0}
# Updates far enough from the rollout that masks act.
FAR = {"train.minibatch": 1, "train.epochs": 2, "train.lr": 0.05, "mask.delta": 0.01}
SECOND_ORDER = {"mask.direction": "second_order", "mask.tail": "uniform"}
SCHEDULE = {"train.steps": 3, "train.schedule": "cosine"}
NEAR = FAR | {"train.lr": 0.003, "algorithm.loss": "gspo"}
# Much for the backward to keep, and every token has a gradient.
LONG = {"model.path": "DEEP", "data.train": "[LONG]", "rollout.prompts": 32, "rollout.group": 2, "train.minibatch": 32}
LONG |= {"algorithm.entropy_bonus": 1e-6, "rollout.max_tokens": 1}
SFT_LONG = {"model.path": "DEEP", "data.train": "[LONG]", "sft.batch": 32, "sft.steps": 1}
# A freed tensor's memory goes back, so that the most a run ever has is what its tensors had, not the gaps between them.
UNPOOLED = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(256 * 1024)}
LORA = {"lora.rank": 4}
FIRST = LORA | {"lora.adapter": '""', "run.dir": "DIR/first"}  # a run of its own, whose adapter the next takes
EVAL = {"eval.files": "[GUESSES]", "eval.samples": 8, "train.steps": 0}
CHATML = {"data.chat_format": "chatml"}
CHAT = SHOW | {"data.chat": "always"}
SOME = {"data.train": "[UNSCORABLE]", "data.shuffle": "false"}  # the first of the four prompts cannot be scored
ACCURACY = "val-core/guess/acc/mean@8"

TRAIN = {
    "run.dir": Case("DIR/a", "DIR/b", lambda o: (o.run.name, (o.run / "metrics.jsonl").exists())),
    "run.seed": Case(0, 1, texts, SHOW),
    "run.device": Case("cpu", "cuda:93", exit_code, fails=True),
    "run.threads": Case(1, 3, lambda o: o.threads, {"train.steps": 6}),
    "run.resume": Case("auto", "never", lines, {"train.steps": 1}, before={"train.steps": 2, "run.resume": "auto"}),
    "run.resume_changed": Case(
        "false",
        "true",
        exit_code,
        {"train.lr": 0.02, "train.steps": 2},
        fails=True,
        before={"train.lr": 0.01, "train.steps": 1},
    ),
    "model.path": Case("GUESSER", "OTHER", texts, SHOW),
    "model.precision": Case("fp32", "bf16", figure("mismatch/logp_diff_mean")),
    "model.reference": Case("GUESSER", "OTHER", figure("actor/kl_loss"), {"algorithm.kl_coef": 0.1}),
    "lora.rank": Case(0, 4, lambda o: o.names("adapter/*")),
    "lora.alpha": Case(32, 8, figure("actor/grad_norm"), LORA),
    "lora.targets": Case("[all-linear]", "[q_proj]", adapter_names, LORA),
    "lora.dropout": Case(0, 0.1, exit_code, LORA, fails=True),
    "lora.modules_to_save": Case("[norm]", "[]", adapter_names, LORA),
    "lora.adapter": Case('""', "DIR/first/adapter", lambda o: o.names("adapter/*"), before=FIRST),
    "data.train": Case("[GUESSES]", "[LONG]", prompts, SHOW),
    "data.prompt_key": Case("prompt", "other", prompts, SHOW),
    "data.answer_key": Case("answer", "other", figure("critic/score/mean")),
    "data.cut_answer": Case("true", "false", exit_code, {"data.train": "[ANSWERED]", **CHATML}, fails=True),
    "data.data_source_key": Case("data_source", "other", names_of_figures("val-core"), EVAL),
    "data.prompt_template": Case('""', '"9 {prompt}"', prompts, SHOW),
    "data.chat": Case("conversations", "always", prompts, SHOW | {"data.chat_format": "chatml"}),
    "data.chat_format": Case("chatml", "llama3", prompts, CHAT),
    "data.thinking": Case("on", "off", prompts, CHAT | {"data.chat_format": "qwen3", "model.path": "THINKER"}),
    "data.date": Case('"26 Jul 2024"', '"1 Jan 2025"', prompts, CHAT | {"data.chat_format": "llama3.1"}),
    "data.max_prompt_tokens": Case(1024, 2, prompts, SHOW | {"data.overlong": "truncate_left"}),
    "data.overlong": Case("error", "truncate_left", exit_code, {"data.max_prompt_tokens": 2}, fails=True),
    "data.shuffle": Case("true", "false", prompts, SHOW),
    "reward.verifier": Case("exact", "gsm8k", figure("critic/score/mean")),
    "reward.python": Case('""', "SCORER:half", figure("critic/score/mean")),
    "reward.workers": Case(1, 4, lambda o: o.figures()["critic/score/max"] > 1, {"reward.python": "SCORER:count"}),
    "reward.timeout_s": Case(30, 0.01, exit_code, {"reward.python": "SCORER:slow"}, fails=True),
    "reward.interpreter": Case('""', "/no/python", exit_code, {"reward.python": "SCORER:half"}, fails=True),
    "reward.error_score": Case(0, -2, figure("critic/score/min"), SOME),
    "reward.max_errors": Case(0.9, 0.01, exit_code, SOME, fails=True),
    "reward.overlong_buffer": Case(0, 6, figure("critic/rewards/mean")),
    "reward.overlong_penalty": Case(1, 3, figure("critic/rewards/mean"), {"reward.overlong_buffer": 6}),
    "rollout.prompts": Case(4, 3, figure("rollout/groups"), {"train.minibatch": 0}),
    "rollout.group": Case(4, 3, lambda o: len(o.tokens), SHOW),
    "rollout.max_tokens": Case(8, 3, figure("response_length/max")),
    "rollout.temperature": Case(1, 0.5, figure("actor/entropy")),
    "rollout.support": Case(8, 3, lambda o: len(o.tokens[0]["tokens"][0]["support"]), SHOW),
    "rollout.staleness": Case(0, 1, figure("rollout/age"), {"train.steps": 2}),
    "rollout.stop": Case("[]", '["2"]', texts, SHOW),
    "rollout.kv_precision": Case("bf16", "fp8", figure("mismatch/logp_diff_mean")),
    "rollout.max_batch": Case(0, 2, figure("perf/decode_batch")),
    "rollout.memory_share": Case(0.5, 1e-9, exit_code, fails=True),
    "rollout.replay_routing": Case("false", "true", exit_code, fails=True),  # refused without experts; test_routing.py
    "mask.preset": Case("predictive-kl-aggregated", "none", figure("mask/outside"), FAR),
    "mask.proximity": Case("kl", "tv", figure("mask/divergence"), FAR),
    "mask.direction": Case("predicted", "ratio", figure("mask/masked"), FAR),
    "mask.support": Case("topk", "binary", figure("mask/divergence"), FAR),
    "mask.tail": Case("aggregated", "uniform", lambda o: read_lines(o.run / "points.jsonl"), FAR),
    "mask.delta": Case(0.01, 0.1, figure("mask/outside"), FAR),
    "mask.delta_negative": Case(0, 0.1, figure("mask/outside"), FAR),
    "mask.clip_low": Case(0.2, 0.01, figure("mask/outside"), FAR | {"mask.preset": "clip"}),
    "mask.clip_high": Case(0.28, 0.01, figure("mask/outside"), FAR | {"mask.preset": "clip"}),
    "mask.ratio_cap": Case(0, 1.01, figure("mask/ratio_cut"), FAR),
    "mask.dual_clip": Case(0, 1.001, figure("mask/masked"), FAR),
    "mask.window": Case("fixed", "ripo", figure("mask/outside"), FAR | {"mask.preset": "clip"}),
    "mask.eta": Case(0.1, 10, figure("mask/masked"), FAR | SECOND_ORDER),
    "mask.weight": Case("ratio", "sapo", weights, FAR),
    "mask.tau_positive": Case(1, 2, weights, FAR | {"mask.preset": "sapo"}),
    "mask.tau_negative": Case(1.05, 2, weights, FAR | {"mask.preset": "sapo"}),
    "mask.epsilon": Case(12.5, 1, weights, FAR | {"mask.preset": "spo"}),
    "mask.penalty": Case("log_ratio", "ratio", weights, FAR | {"mask.preset": "ipo"}),
    "mask.penalty_coef": Case(0.001, 0.1, weights, FAR | {"mask.preset": "ipo"}),
    "mask.scope": Case("token", "mis_geometric", figure("mask/divergence"), FAR | {"mask.preset": "icepop"}),
    "mask.delta_mean": Case(0.01, 0.0001, figure("mask/masked"), FAR | {"mask.preset": "trm", "mask.delta": 100}),
    "mask.position_floor": Case(0.8, 0.1, figure("mask/divergence"), FAR | {"mask.preset": "cppo", "mask.delta": 0.15}),
    "mask.prefix_budget": Case(0.02, 1e-9, figure("mask/masked"), FAR | {"mask.preset": "cppo", "mask.delta": 0.02}),
    "mask.outside_budget": Case(0, 0.5, names_of_figures("mask/delta"), FAR),
    "algorithm.advantage": Case("grpo", "rloo", figure("critic/advantages/max")),
    "algorithm.aggregation": Case("token-mean", "token-sum", figure("actor/grad_norm")),
    "algorithm.horizon": Case(0, 3, figure("actor/pg_loss"), {"algorithm.aggregation": "seq-mean-token-sum-norm"}),
    "algorithm.loss": Case("masked", "gspo", figure("mask/ratio"), FAR),
    "algorithm.loss_clip_low": Case(0.2, 1e-3, figure("mask/masked"), NEAR),
    "algorithm.loss_clip_high": Case(0.28, 1e-3, figure("mask/capped"), FAR | {"algorithm.loss": "cispo"}),
    "algorithm.tis_cap": Case(2, 1.01, figure("mask/ratio_cut"), FAR | {"algorithm.loss": "tis"}),
    "algorithm.anchor": Case("rollout", "recomputed", figure("mask/ratio"), {"model.precision": "bf16"}),
    "algorithm.kl_coef": Case(0, 0.1, names_of_figures("actor/kl")),
    "algorithm.load_balance_coef": Case(0, 0.1, exit_code, fails=True),  # likewise
    "algorithm.kl_estimator": Case(
        "k3", "k2", figure("actor/grad_norm"), {"algorithm.kl_coef": 0.5, "model.reference": "OTHER"}
    ),
    "algorithm.entropy_bonus": Case(0, 0.1, figure("actor/pg_loss")),
    "algorithm.skip_equal_groups": Case("false", "true", lambda o: len(o.tokens), SHOW | {"data.train": "[HALF]"}),
    "algorithm.dynamic_sampling": Case("false", "true", figure("rollout/refills"), {"data.train": "[HALF]"}),
    "algorithm.max_refills": Case(
        1, 2, figure("rollout/refills"), {"algorithm.dynamic_sampling": "true", "data.train": "[WRONG]"}
    ),
    "algorithm.drop_truncated": Case("false", "true", lambda o: len(o.tokens), SHOW | {"rollout.max_tokens": 1}),
    "train.steps": Case(1, 2, lines),
    "train.minibatch": Case(2, 1, figure("actor/updates")),
    "train.epochs": Case(1, 2, figure("actor/updates")),
    "train.lr": Case(0.01, 0.02, weights),
    "train.warmup_steps": Case(0, 2, figure("actor/lr")),
    "train.schedule": Case("constant", "cosine", figure("actor/lr"), {"train.steps": 3}),
    "train.min_lr_ratio": Case(0, 0.5, figure("actor/lr"), SCHEDULE),
    "train.beta1": Case(0.9, 0.5, weights),
    "train.beta2": Case(0.999, 0.5, weights),
    "train.eps": Case(0.001, 0.1, weights),
    "train.weight_decay": Case(0.01, 0.5, weights),
    "train.grad_clip": Case(1, 1e-3, weights),
    "train.optimizer_dtype": Case(
        "fp32", "bf16", lambda o: sum(p.stat().st_size for p in o.run.glob("checkpoints/*/tensors.safetensors"))
    ),
    "train.gradient_dtype": Case("fp32", "bf16", weights),
    "train.checkpoint_activations": Case("none", "full", memory, LONG, apart=40),
    "train.micro_tokens": Case(16384, 1, memory, LONG, apart=40),
    "train.max_bad_updates": Case(3, 1, exit_code, flags=("--corrupt-gradient", 1), fails=True),
    "checkpoint.every": Case(0, 1, checkpoints, {"train.steps": 2}),
    "checkpoint.keep": Case(2, 1, checkpoints, {"train.steps": 2, "checkpoint.every": 1}),
    "eval.files": Case("[]", "[GUESSES]", names_of_figures("val-core"), EVAL | {"train.steps": 1}),
    "eval.every": Case(0, 1, lambda o: ACCURACY in o.figures(1), EVAL | {"train.steps": 2}),
    "eval.at_start": Case("true", "false", lines, EVAL | {"train.steps": 1}),
    "eval.samples": Case(8, 4, names_of_figures("val-core"), EVAL),
    "eval.prompts": Case(0, 5, figure(ACCURACY), EVAL),
    "eval.temperature": Case(1, 0, figure(ACCURACY), EVAL),
    "eval.top_p": Case(1, 0.05, figure(ACCURACY), EVAL),
    "eval.top_k": Case(0, 1, figure(ACCURACY), EVAL),
    "eval.max_tokens": Case(0, 1, figure(ACCURACY), EVAL | {"reward.verifier": "gsm8k_flexible"}),
    "audit.every": Case(0, 1, names_of_figures("audit")),
    "log.console": Case("false", "true", lambda o: o.errors != ""),
    "log.tensorboard": Case("false", "true", lambda o: o.names("tensorboard/*") != []),
    "log.tokens": Case(0, 2, lambda o: len(o.tokens)),
    "log.wandb": Case('""', "project", lambda o: o.names("wandb.json")),
}

SFT = {
    "sft.from_scratch": Case("false", "true", figure("train/loss", 0)),
    "sft.steps": Case(2, 3, lines),
    "sft.batch": Case(4, 2, figure("train/loss", 0)),
    "sft.lr": Case(0.01, 0.02, weights),
    "sft.warmup_steps": Case(0, 2, figure("train/lr", 0)),
    "sft.schedule": Case("constant", "cosine", figure("train/lr")),
    "sft.min_lr_ratio": Case(0, 0.5, figure("train/lr"), {"sft.schedule": "cosine"}),
    "sft.beta1": Case(0.9, 0.5, weights),
    "sft.beta2": Case(0.999, 0.5, weights),
    "sft.eps": Case(1e-8, 0.1, weights),
    "sft.weight_decay": Case(0.01, 0.5, weights),
    "sft.grad_clip": Case(1, 1e-3, weights, {"sft.eps": 0.1}),
    "sft.optimizer_dtype": TRAIN["train.optimizer_dtype"],
    "sft.gradient_dtype": Case("fp32", "bf16", weights, {"sft.eps": 0.1}),
    "sft.checkpoint_activations": Case("none", "full", memory, SFT_LONG, apart=40),
    "sft.micro_tokens": Case(16384, 1, memory, SFT_LONG, apart=40),
    "sft.max_bad_updates": Case(3, 1, exit_code, {"sft.lr": 1e30, "sft.steps": 3}, fails=True),
}


# Keys of the sections that augur sft shares with augur train.
LOSS = figure("train/loss", 0)
ALWAYS = {"data.chat": "always"}
SHARED = {
    "run.dir": TRAIN["run.dir"],
    "run.seed": Case(0, 1, LOSS),
    "run.device": TRAIN["run.device"],
    "run.threads": Case(1, 3, lambda o: o.threads, {"sft.steps": 6}),
    "run.resume": Case("auto", "never", lines, {"sft.steps": 1}, before={"sft.steps": 2, "run.resume": "auto"}),
    "run.resume_changed": Case(
        "false", "true", exit_code, {"sft.lr": 0.02}, fails=True, before={"sft.lr": 0.01, "sft.steps": 1}
    ),
    "model.path": Case("GUESSER", "OTHER", LOSS),
    "model.precision": Case("fp32", "bf16", LOSS),
    "lora.rank": TRAIN["lora.rank"],
    "lora.alpha": Case(32, 8, figure("train/grad_norm", 0), LORA),
    "lora.targets": TRAIN["lora.targets"],
    "lora.dropout": TRAIN["lora.dropout"],
    "lora.modules_to_save": TRAIN["lora.modules_to_save"],
    "lora.adapter": TRAIN["lora.adapter"],
    "data.train": Case("[GUESSES]", "[LONG]", LOSS),
    "data.prompt_key": Case("prompt", "other", LOSS),
    "data.answer_key": Case("answer", "other", LOSS),
    "data.prompt_template": Case('""', '"9 {prompt}"', LOSS),
    "data.chat": Case("conversations", "always", LOSS, {"data.chat_format": "chatml"}),
    "data.chat_format": Case("chatml", "llama3", LOSS, ALWAYS),
    "data.thinking": Case("on", "off", LOSS, ALWAYS | {"data.chat_format": "qwen3", "model.path": "THINKER"}),
    "data.date": Case('"26 Jul 2024"', '"1 Jan 2025"', LOSS, ALWAYS | {"data.chat_format": "llama3.1"}),
    "data.max_prompt_tokens": Case(1024, 2, LOSS, {"data.overlong": "truncate_left"}),
    "data.overlong": TRAIN["data.overlong"],
    "data.shuffle": Case("true", "false", LOSS),
    "checkpoint.every": Case(0, 1, checkpoints),
    "checkpoint.keep": Case(2, 1, checkpoints, {"checkpoint.every": 1}),
    "log.console": TRAIN["log.console"],
    "log.tensorboard": TRAIN["log.tensorboard"],
}

# A CPU repeats to the bit anyway; test_deterministic.py has it on a GPU.
GPU_ALONE = {"run.deterministic"}
# test_parallel.py has these, on several processes.
ON_RANKS = {"parallel.shard", "parallel.replicas", "parallel.timeout_s"}


def documented_keys() -> set[str]:
    keys, section = set(), ""
    for line in (ROOT / "docs" / "configuration.md").read_text().splitlines():
        if heading := re.match(r"### `(\w+)`", line):
            section = heading[1]
        elif key := re.match(r"\| `(\w+)` \|", line):
            keys.add(f"{section}.{key[1]}")
    return keys


def test_the_table_has_every_documented_key_and_no_other():
    documented, listed = documented_keys(), TRAIN.keys() | SFT.keys() | GPU_ALONE | ON_RANKS
    assert len(documented) > 100
    assert documented - listed == set(), "add a case: two values, and where a run shows the difference"
    assert listed - documented == set()


# Keys of shared sections that say nothing to supervised fine-tuning; it refuses three of them.
TRAIN_ALONE = {"model.reference", "log.wandb", "log.tokens", "data.data_source_key", "data.cut_answer"}


def test_the_table_has_every_key_that_sft_shares():
    sections = {key.split(".")[0] for key in SHARED}
    known = {key for key in documented_keys() if key.split(".")[0] in sections}
    assert sections == {"run", "model", "lora", "data", "checkpoint", "log"}
    assert SHARED.keys() == known - TRAIN_ALONE - GPU_ALONE


SCORER = """
import fcntl, os, time

def half(completions, **columns):
    return [0.5] * len(completions)

def slow(completions, **columns):
    time.sleep(0.2)
    return [0.0] * len(completions)

def count(completions, **columns):
    '''How many processes have scored so far.'''
    with open(__file__ + str(os.getppid()), "a+") as seen:
        fcntl.flock(seen, fcntl.LOCK_EX)
        seen.write(f"{os.getpid()}\\n")
        seen.flush()
        seen.seek(0)
        known = set(seen.read().split())
    time.sleep(0.1)
    return [float(len(known))] * len(completions)
"""


def make_thinker(directory: Path) -> Path:
    """A guesser whose tokenizer knows <think>."""
    make_guesser(directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["<think>"] = tokenizer["model"]["vocab"].pop("Ġ255")
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": 255, "content": "<think>", "special": False})
    tokenizer["added_tokens"].sort(key=lambda token: token["id"])
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


class Runs:
    """Runs commands, each set of settings once."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.count = 0
        self.files = {
            "GUESSER": make_guesser(directory / "guesser"),
            "OTHER": make_guesser(directory / "other", seed=5),
            "DEEP": make_policy(directory / "deep", layers=48, positions=512),
            "THINKER": make_thinker(directory / "thinker"),
        }
        rows = {
            "GUESSES": [{"prompt": f"{i} {i + 1} =", "answer": "7", "other": str(i)} for i in range(12)],
            "WRONG": [{"prompt": f"{i} =", "answer": "never"} for i in range(12)],
            "HALF": [{"prompt": f"{i} =", "answer": "never" if i % 2 else "7"} for i in range(12)],
            "UNSCORABLE": [{"prompt": f"{i} =", "answer": "7" if i % 4 else ["no", "text"]} for i in range(12)],
            "LONG": [{"prompt": "1 2 " * 60 + f"{i} =", "answer": "7"} for i in range(32)],
        }
        turns = [("user", "1 2 ="), ("assistant", "7")]
        rows["ANSWERED"] = [{"messages": [{"role": role, "content": text} for role, text in turns]}] * 12
        for name, content in rows.items():
            self.files[name] = directory / f"{name.lower()}.jsonl"
            self.files[name].write_text("".join(json.dumps({"data_source": "guess"} | row) + "\n" for row in content))

        self.files["SCORER"] = directory / "scorer.py"
        self.files["SCORER"].write_text(SCORER)

    def resolve(self, value: object, run: Path) -> str:
        text = str(value).replace("DIR", str(run.parent))
        return re.sub(r"\b[A-Z]{4,}\b", lambda name: str(self.files[name[0]]), text)

    @functools.cache  # noqa: B019
    def run(self, command: str, settings: tuple, flags: tuple, fails: bool, before: tuple) -> Outcome:
        self.count += 1
        directory = self.directory / str(self.count)
        directory.mkdir()
        wanted = dict(settings)
        run = Path(self.resolve(wanted.pop("run.dir", directory / "run"), directory / "run"))
        wanted = {"model.path": "GUESSER", "data.train": "[GUESSES]"} | wanted
        if before:
            self.execute(command, run, directory, wanted | dict(before), (), False)
        return self.execute(command, run, directory, wanted, flags, fails)

    def execute(self, command, run, directory, settings, flags, fails) -> Outcome:
        sections: dict[str, list[str]] = {}
        for key, value in ({"run.dir": run} | settings).items():
            section, name = key.split(".")
            sections.setdefault(section, []).append(f"  {name}: {self.resolve(value, run)}")
        text = "".join(f"{section}:\n" + "\n".join(entries) + "\n" for section, entries in sections.items())
        (directory / "config.yaml").write_text(text)
        arguments = [PROGRAM, command, directory / "config.yaml", *map(str, flags)]
        with open(directory / "errors", "w+") as errors:
            process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=errors, env=UNPOOLED)
            code, threads, memory = watch(process)
            errors.seek(0)
            outcome = Outcome(run, code, errors.read(), threads, memory)
        assert fails or code == 0, f"{text}\n{outcome.errors}"
        return outcome


def watch(process: subprocess.Popen) -> tuple[int, int, float]:
    """Waits for it: exit code, most threads, most memory in MiB."""
    threads = memory = 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if peak := re.search(r"VmHWM:\s+(\d+)", status):  # none once it has ended
            memory = int(peak[1])
            threads = max(threads, int(re.search(r"Threads:\s+(\d+)", status)[1]))
        time.sleep(0.01)
    return process.returncode, threads, memory / 1024


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def both(runs: Runs, command: str, base: dict, key: str, case: Case) -> list[object]:
    seen = []
    for value in (case.one, case.two):
        settings = base | case.given | {key: value}
        before = tuple((case.before or {}).items())
        seen.append(case.see(runs.run(command, tuple(sorted(settings.items())), case.flags, case.fails, before)))
    return seen


def assert_differ(one: object, two: object, apart: float) -> None:
    assert abs(one - two) > apart if apart else one != two


@pytest.mark.slow
@pytest.mark.parametrize("key", TRAIN)
def test_a_key_of_train_changes_what_it_says(runs, key):
    assert_differ(*both(runs, "train", BASE, key, TRAIN[key]), TRAIN[key].apart)


@pytest.mark.slow
@pytest.mark.parametrize("key", SFT)
def test_a_key_of_sft_changes_what_it_says(runs, key):
    assert_differ(*both(runs, "sft", SFT_BASE, key, SFT[key]), SFT[key].apart)


@pytest.mark.slow
@pytest.mark.parametrize("key", SHARED)
def test_a_key_of_both_changes_what_it_says_in_sft(runs, key):
    assert_differ(*both(runs, "sft", SFT_BASE, key, SHARED[key]), SHARED[key].apart)


def test_sft_multiplies_in_fp8_where_it_is_asked_to(runs):
    assert_differ(*both(runs, "sft", SFT_BASE, "model.precision", Case("bf16", "fp8", LOSS)), 0)


def test_the_seed_decides_the_weights_of_sft_from_scratch(runs):
    given = {"sft.from_scratch": "true", "data.shuffle": "false"}
    assert_differ(*both(runs, "sft", SFT_BASE, "run.seed", Case(0, 1, LOSS, given)), 0)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "base", "given"), [("train", BASE, LONG), ("sft", SFT_BASE, SFT_LONG)])
def test_selective_checkpointing_keeps_less_than_none_and_more_than_full(runs, command, base, given):
    key = f"{command}.checkpoint_activations"
    none, some = both(runs, command, base, key, Case("none", "selective", memory, given))
    _, full = both(runs, command, base, key, Case("none", "full", memory, given))
    assert none > some + 60 > full + 200


def test_a_key_that_has_no_effect_would_fail(runs):
    """Two runs of equal settings are equal in what the table looks at."""
    case = TRAIN["mask.delta"]
    for see in (case.see, texts, weights):
        one, two = both(runs, "train", BASE | SHOW | FAR, "checkpoint.keep", Case(3, 4, see))
        assert one == two
