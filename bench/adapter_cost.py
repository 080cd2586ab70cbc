"""What the mask costs in TRL and in verl: time and peak memory against the framework's own loss, in one run.

    .venv-trl/bin/python bench/adapter_cost.py trl MODEL [--rounds 5]
    .venv-verl/bin/python bench/adapter_cost.py verl MODEL [--rounds 5]

Each variant trains in a process of its own, for its peak memory, and the processes take turns. Times are CPU seconds on
one thread, which other work on the machine disturbs least, and the best of all rounds. Prints JSON.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = {
    "trl": ["grpo", "one pass", "rows with TRL's head"],
    "verl": ["vanilla", "augur", "augur_predictive_kl_exact"],
}
TOKENS = 24


def time_trl(variant: str, model: str) -> dict:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from augur.trl import AugurGRPOConfig, AugurGRPOTrainer

    plain = variant == "grpo"
    trainer_class, config_class = (GRPOTrainer, GRPOConfig) if plain else (AugurGRPOTrainer, AugurGRPOConfig)

    class Timed(trainer_class):
        seconds: dict[str, list[float]] = {"generate": [], "update": []}

        def _generate_and_score_completions(self, inputs):  # noqa: ANN001, ANN202
            start = time.process_time()
            output = super()._generate_and_score_completions(inputs)
            self.seconds["generate"].append(time.process_time() - start)
            return output

        def compute_loss(self, *args, **kwargs):  # noqa: ANN202
            self.start = time.process_time()
            return super().compute_loss(*args, **kwargs)

        def training_step(self, *args, **kwargs):  # noqa: ANN202
            output = super().training_step(*args, **kwargs)
            self.seconds["update"].append(time.process_time() - self.start)
            return output

    with tempfile.TemporaryDirectory() as directory:
        config = config_class(
            output_dir=directory,
            per_device_train_batch_size=4,
            num_generations=4,
            steps_per_generation=2,
            max_completion_length=TOKENS,
            max_steps=4,
            learning_rate=1e-6,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            **({} if plain else {"one_pass": variant == "one pass"}),
        )
        trainer = Timed(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            reward_funcs=lambda completions, **_: [float(i % 3) for i in range(len(completions))],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "Count from one to a hundred: one, two, three,"}] * 64),
            processing_class=AutoTokenizer.from_pretrained(model),
        )
        trainer.train()
    return {part: min(seconds) for part, seconds in Timed.seconds.items()}


def time_verl(variant: str, model: str) -> dict:
    sys.path[:0] = [str(ROOT / "tests" / "python" / "adapters"), str(ROOT / "tests" / "python")]
    import verl_cpu as harness

    harness.one_process(0)
    worker = harness.make_worker(model, harness.actor_config(variant), remove_padding=True)
    vocab = worker.model_config.hf_config.vocab_size
    batch = harness.random_batch(rows=4, tokens=TOKENS, vocab=vocab)
    worker.train_mini_batch(harness.as_verl(batch))
    start = time.process_time()
    worker.train_mini_batch(harness.as_verl(batch))
    return {"update": time.process_time() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=VARIANTS)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        torch.set_num_threads(1)
        run = partial({"trl": time_trl, "verl": time_verl}[options.framework], options.variant, options.model)
        seconds = run()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "peak_mib": peak}))
        return
    results: dict[str, list[dict]] = {name: [] for name in VARIANTS[options.framework]}
    for _ in range(options.rounds):
        for name, rounds in results.items():
            command = [sys.executable, "-W", "ignore", __file__, options.framework, options.model, "--variant", name]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{name}: {done.stderr[-2000:]}")
            rounds.append(json.loads(done.stdout.splitlines()[-1]))
    report = {}
    for name, rounds in results.items():
        best = {part: min(r["seconds"][part] for r in rounds) for part in rounds[0]["seconds"]}
        report[name] = {**best, "peak_mib": min(r["peak_mib"] for r in rounds)}
    base = report[VARIANTS[options.framework][0]]
    for figures in report.values():
        figures |= {f"{part}_ratio": figures[part] / base[part] for part in list(figures)}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
