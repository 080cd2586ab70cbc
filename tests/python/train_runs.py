"""Small training runs for the tests: a random model of the bundled one's vocabulary, and configurations for it."""

import json
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from conftest import ROOT

END_TOKENS = list(range(90))  # a third of the vocabulary: responses of random models end at different lengths
VOCAB = 272


def make_policy(directory: Path, seed: int = 0, scale: float = 0.12) -> Path:
    """A Hugging Face directory with a random Qwen3, whose responses end early and often."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_((1 if "norm" in name else 0) + scale * torch.randn_like(parameter))
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_text((ROOT / "models" / "tiny" / name).read_text())
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": END_TOKENS}))
    return directory


SETTINGS = {
    "run.threads": 1,
    "model.precision": "fp32",
    "data.train": "[task:sort:numbers=4:count=64:seed=3]",
    "reward.verifier": "exact",
    "reward.overlong_buffer": 8,
    "rollout.prompts": 4,
    "rollout.group": 4,
    "rollout.max_tokens": 8,
    "rollout.support": 8,
    "train.minibatch": 2,
    "train.epochs": 2,
    "train.lr": 0.01,
    "train.eps": 0.001,
    "eval.every": 0,
    "log.tensorboard": "false",
    "log.tokens": 0,
}


def write_config(path: Path, policy: Path, run: Path, **changes) -> Path:
    """A YAML file of SETTINGS; changes are written section__key=value."""
    settings = SETTINGS | {"model.path": policy, "run.dir": run}
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    sections: dict[str, list[str]] = {}
    for key, value in settings.items():
        if "." in key:
            section, name = key.split(".")
            sections.setdefault(section, []).append(f"  {name}: {value}")
    lines = [f"{key}: {value}" for key, value in settings.items() if "." not in key]
    for section, entries in sections.items():
        lines += [f"{section}:", *entries]
    path.write_text("\n".join(lines) + "\n")
    return path


def read_metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_times(lines: list[dict]) -> list[dict]:
    """What must repeat to the bit: everything but times, speeds and memory."""
    return [
        {"step": line["step"], "data": {k: v for k, v in line["data"].items() if not k.startswith(("timing", "perf"))}}
        for line in lines
    ]
