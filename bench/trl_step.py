"""Times one RL step of TRL's GRPOTrainer and of `augur train` on the same model, batch and machine.

    .venv-trl/bin/python bench/trl_step.py [MODEL] [--steps 4] [--trainer grpo|augur] [--no-augur]

A step is 64 prompts x 8 samples, then 4 minibatch updates; the first of each is a warm-up and not counted. Prints JSON:
seconds per step (the best, because other work on a machine only ever adds) and the ratio. Prompts are those of
recipes/quickstart.yaml, ten numbers to sort; both run in float32 with two threads.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from augur.trl import AugurGRPOConfig, AugurGRPOTrainer

ROOT = Path(__file__).resolve().parents[1]
TASK = "task:sort,count=4096,seed=11"
MINIBATCHES = 4


class StepTimes(TrainerCallback):
    """Seconds from one generation to the next: TRL calls each minibatch update a step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs) -> None:  # noqa: ANN001
        if state.global_step % MINIBATCHES == 0:
            self.marks.append(time.perf_counter())

    def on_train_end(self, args, state, control, **kwargs) -> None:  # noqa: ANN001
        self.marks.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        return [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)][1:]


def make_dataset(program: str) -> Dataset:
    lines = subprocess.run([program, "prompts", TASK], capture_output=True, text=True, check=True).stdout.splitlines()
    prompts = [json.loads(line) for line in lines]
    return Dataset.from_list([{"prompt": p["prompt"], "answer": p["ground_truth"]} for p in prompts])


def exact_match(completions: list[str], answer: list[str], **_) -> list[float]:
    return [float(text.strip() == expected.strip()) for text, expected in zip(completions, answer, strict=True)]


def time_trl(options: argparse.Namespace) -> list[float]:
    classes = {"grpo": (GRPOTrainer, GRPOConfig), "augur": (AugurGRPOTrainer, AugurGRPOConfig)}
    trainer_class, config_class = classes[options.trainer]
    times = StepTimes()
    batch = options.prompts * options.samples
    with tempfile.TemporaryDirectory() as directory:
        config = config_class(
            output_dir=directory,
            per_device_train_batch_size=batch // MINIBATCHES,
            steps_per_generation=MINIBATCHES,
            num_generations=options.samples,
            max_completion_length=options.tokens,
            max_steps=MINIBATCHES * (options.steps + 1),
            learning_rate=3e-4,
            logging_steps=MINIBATCHES,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        trainer = trainer_class(
            model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
            reward_funcs=exact_match,
            args=config,
            train_dataset=make_dataset(options.program),
            processing_class=AutoTokenizer.from_pretrained(options.model),
            callbacks=[times],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return times.seconds


def time_augur(options: argparse.Namespace) -> list[float]:
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            "run.dir": f"{directory}/run",
            "run.threads": options.threads,
            "model.path": options.model,
            "model.precision": "fp32",
            "data.train": f'["{TASK}"]',
            "rollout.prompts": options.prompts,
            "rollout.group": options.samples,
            "rollout.max_tokens": options.tokens,
            "train.minibatch": options.prompts // MINIBATCHES,
            "train.steps": options.steps + 1,
            "eval.every": 0,
            "checkpoint.every": 0,
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        command = [options.program, "train", ROOT / "recipes" / "quickstart.yaml", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"augur train ended with {done.returncode}: {done.stderr.strip()}")
        lines = (Path(directory) / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["data"] for line in lines]
    # The last step evaluates, too, which TRL's does not.
    return [s["timing_s/step"] - s.get("timing_s/testing", 0.0) for s in steps if "timing_s/step" in s][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "tiny"))
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4, help="steps counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--program", default=str(ROOT / "build" / "augur"), help="the augur to time")
    parser.add_argument("--trainer", choices=["grpo", "augur"], default="grpo", help="TRL's trainer, or with the mask")
    parser.add_argument("--no-augur", action="store_true", help="time TRL alone")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    report: dict = {"model": options.model, "batch": f"{options.prompts}x{options.samples}x{options.tokens}"}
    trl = time_trl(options)
    report["trl_seconds"] = min(trl)
    if not options.no_augur:
        augur = time_augur(options)
        report["augur_seconds"] = min(augur)
        report["ratio"] = min(trl) / min(augur)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
