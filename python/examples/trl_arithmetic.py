"""Trains a small language model on two-digit sums with TRL, under the predictive mask, on a CPU or a GPU.

    .venv-trl/bin/python python/examples/trl_arithmetic.py [MODEL] [--steps 40] [--mask-rule RULE]

MODEL is a Hugging Face name or directory; SmolLM2-135M-Instruct if left out. Against TRL's own GRPO five lines change:
the import, the two class names, mask_rule and support_size. Watch mask/outside, mask/masked and mask/disagree in the
log (docs/trl.md says how to read them).
"""

import argparse
import random
import re

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from augur.trl import AugurGRPOConfig, AugurGRPOTrainer


def make_sums(rows: int, seed: int) -> Dataset:
    rng = random.Random(seed)
    pairs = [(rng.randrange(10, 100), rng.randrange(10, 100)) for _ in range(rows)]
    question = "What is {} + {}? Reply with the number alone."
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": question.format(a, b)}], "answer": a + b} for a, b in pairs]
    )


def is_right(completions: list[list[dict]], answer: list[int], **_) -> list[float]:
    """1 when the last number of the reply is the sum, 0.1 for a reply with another number, 0 for none."""
    rewards = []
    for completion, expected in zip(completions, answer, strict=True):
        numbers = re.findall(r"\d+", completion[0]["content"])
        rewards.append(0.0 if not numbers else 1.0 if int(numbers[-1]) == expected else 0.1)
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--steps", type=int, default=40, help="minibatch updates; 4 to a generation")
    parser.add_argument("--mask-rule", default="predictive-kl-aggregated")
    parser.add_argument("--output", default="runs/trl-arithmetic")
    parser.add_argument("--cpu", action="store_true", help="stay on the CPU where there is a GPU")
    options = parser.parse_args()
    config = AugurGRPOConfig(
        output_dir=options.output,
        mask_rule=options.mask_rule,
        support_size=20,
        per_device_train_batch_size=16,
        num_generations=8,
        steps_per_generation=4,  # each batch of samples is used for 4 updates: the policy moves away from the sampler
        max_completion_length=12,
        learning_rate=1e-5,
        max_steps=options.steps,
        logging_steps=4,
        save_strategy="no",
        report_to=[],
        use_cpu=options.cpu,
        bf16=False,
    )
    trainer = AugurGRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model),
        reward_funcs=is_right,
        args=config,
        train_dataset=make_sums(4096, seed=0),
        processing_class=AutoTokenizer.from_pretrained(options.model),
    )
    trainer.train()
    for entry in trainer.state.log_history:
        if "reward" in entry:
            print(" ".join(f"{name}={entry[name]:.4f}" for name in ("reward", "mask/outside", "mask/masked")))


if __name__ == "__main__":
    main()
