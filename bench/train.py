"""A whole training step of Augur against TRL's GRPOTrainer: the same tiny model, prompts, batch and machine, one run.

    .venv-trl/bin/python bench/train.py            # ./check --adapters makes that environment

Both generate 64 prompts x 8 responses, score them and make 4 updates of 128 responses; the figure is the median time of
such a step, measured in turns. TRL runs in float32, Augur as recipes/quickstart.yaml says (FP8 rollout, K = 20): groups
of equal rewards, which teach nothing, are not computed; with --all-groups they are.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerState
from trl import GRPOConfig, GRPOTrainer

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "tiny"
TASK = "task:sort:count=4096:seed=11"
PROMPTS, GROUP, UPDATES, MAX_TOKENS = 64, 8, 4, 16


def prompts() -> Dataset:
    lines = subprocess.run([ROOT / "build/augur", "prompts", TASK], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    return Dataset.from_dict({"prompt": [r["prompt"] for r in rows], "answer": [r["ground_truth"] for r in rows]})


def exact(completions: list[str], answer: list[str], **_: object) -> list[float]:
    return [float(c.strip() == a) for c, a in zip(completions, answer, strict=True)]


class StepTimes(TrainerCallback):
    """The time of every UPDATES updates, which share one generation."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_step_begin(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        if state.global_step % UPDATES == 0:
            self.starts.append(time.perf_counter())

    def on_train_end(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        self.starts.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [b - a for a, b in zip(self.starts, self.starts[1:], strict=False)][1:]  # the first warms up


def time_trl(steps: int, data: Dataset) -> list[float]:
    times = StepTimes()
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=PROMPTS * GROUP // UPDATES,
            num_generations=GROUP,
            steps_per_generation=UPDATES,
            max_completion_length=MAX_TOKENS,
            temperature=1.0,
            learning_rate=3e-4,
            beta=0.0,
            max_steps=UPDATES * (steps + 1),
            logging_steps=1000,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(model=str(MODEL), reward_funcs=exact, args=config, train_dataset=data, callbacks=[times])
        trainer.train()
    return times.seconds()


def time_augur(steps: int, threads: int, all_groups: bool) -> list[float]:
    with tempfile.TemporaryDirectory() as out:
        settings = [
            f"run.dir={out}/run", f"run.threads={threads}", f"train.steps={steps + 1}", f"data.train=[{TASK}]",
            f"rollout.prompts={PROMPTS}", f"rollout.group={GROUP}", f"train.minibatch={PROMPTS // UPDATES}",
            f"rollout.max_tokens={MAX_TOKENS}", "eval.files=[]", "checkpoint.every=0",
            f"algorithm.skip_equal_groups={str(not all_groups).lower()}",
        ]  # fmt: skip
        subprocess.run(
            [ROOT / "build/augur", "train", ROOT / "recipes/quickstart.yaml", *settings],
            check=True, capture_output=True,
        )  # fmt: skip
        lines = (Path(out) / "run" / "metrics.jsonl").read_text().splitlines()
        times = [float(re.search(r'"timing_s/step":([0-9.e+-]+)', line)[1]) for line in lines]
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each in a turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--all-groups", action="store_true", help="Augur learns from groups of equal rewards too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = prompts()
    trl, augur = [], []
    for _ in range(options.turns):
        trl += time_trl(options.steps, data)
        augur += time_augur(options.steps, options.threads, options.all_groups)
    ours, theirs = statistics.median(augur), statistics.median(trl)
    print(json.dumps({"augur_s": round(ours, 3), "trl_s": round(theirs, 3), "ratio": round(theirs / ours, 2)}))


if __name__ == "__main__":
    main()
