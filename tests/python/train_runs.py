"""Small training runs for the tests: a random model of the bundled one's vocabulary, and configurations for it."""

import json
import subprocess
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from conftest import PROGRAM, ROOT, run_augur

END_TOKENS = list(range(90))  # a third of the vocabulary: responses of random models end at different lengths
VOCAB = 272
ALL = 1000  # responses in the viewer: more than any step here has


def make_policy(
    directory: Path, seed: int = 0, scale: float = 0.12, hidden: int = 32, layers: int = 2, positions: int = 128
) -> Path:
    """A Hugging Face directory with a random Qwen3, whose responses end early and often."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=hidden,
            intermediate_size=hidden * 3 // 2,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=positions,
            tie_word_embeddings=True,
        )
    )
    return save_policy(model, directory, scale)


def make_moe_policy(directory: Path, seed: int = 0, scale: float = 0.12, moe_intermediate_size: int = 24) -> Path:
    """The same of a Qwen3 with experts."""
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            moe_intermediate_size=moe_intermediate_size,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    )
    return save_policy(model, directory, scale)


def save_policy(model: PreTrainedModel, directory: Path, scale: float) -> Path:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_((1 if "norm" in name else 0) + scale * torch.randn_like(parameter))
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_text((ROOT / "models" / "tiny" / name).read_text())
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": END_TOKENS}))
    return directory


ANSWER = "7"  # a token of its own, and one that ends a response


def make_guesser(directory: Path, seed: int = 0, strength: float = 1.3) -> Path:
    """A policy that answers ANSWER about every other time: the first width of all embeddings is the same, and the
    head reads it for that token alone."""
    make_policy(directory, seed)
    tensors = load_file(directory / "model.safetensors")
    table, head = tensors["model.embed_tokens.weight"].clone(), tensors["model.embed_tokens.weight"].clone()
    table[:, 0] += 2
    head[:, 0] = 0
    head[int(ANSWER), 0] = strength
    save_file(tensors | {"model.embed_tokens.weight": table, "lm_head.weight": head}, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text()) | {"tie_word_embeddings": False}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_guesses(path: Path, count: int = 12) -> Path:
    """Prompts whose answer is ANSWER."""
    rows = [{"prompt": f"{i} {i + 1} =", "answer": ANSWER, "data_source": "guess"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


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


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def train(directory, model, *flags, **changes):
    """Trains to the end; the figures of each step and the viewer's responses."""
    directory.mkdir(exist_ok=True)
    config = write_config(directory / "c.yaml", model, directory / "run", **changes)
    run_augur("train", config, "log.console=false", *flags)
    figures = {line["step"]: line["data"] for line in read_metrics(directory / "run")}
    return figures, read_lines(directory / "run" / "tokens.jsonl")


def dump(directory, model, **changes):
    """The first step's updates: samples and tensors."""
    figures, _ = train(directory, model, "--dump-step", directory / "dump", **changes)
    updates = []
    while (stem := directory / "dump" / f"update_{len(updates)}").with_suffix(".jsonl").exists():
        updates.append((read_lines(stem.with_suffix(".jsonl")), load_file(stem.with_suffix(".safetensors"))))
    return updates, figures[1]


def ids(response):
    return [token["id"] for token in response["tokens"]]


def log_probs_at(model, sample, temperature):
    tokens = torch.tensor([sample["prompt"] + sample["response"]])
    with torch.no_grad():
        logits = model(tokens).logits[0, len(sample["prompt"]) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)


def without_times(lines: list[dict]) -> list[dict]:
    """What must repeat to the bit: everything but times, speeds and memory."""
    return [
        {"step": line["step"], "data": {k: v for k, v in line["data"].items() if not k.startswith(("timing", "perf"))}}
        for line in lines
    ]


STEPS = 12


def small_config(tmp_path: Path, policy: Path, name: str = "run", **changes) -> Path:
    """Twelve short steps with evaluations, a checkpoint after each."""
    settings = dict(
        rollout__prompts=2, rollout__group=2, train__minibatch=1, train__epochs=1, train__steps=STEPS,
        checkpoint__every=1, eval__files="[task:sort:numbers=4:count=2:seed=9]", eval__samples=2, eval__every=3,
        log__console="false", log__tokens=1, log__tensorboard="true",
    )  # fmt: skip
    return write_config(tmp_path / f"{name}.yaml", policy, tmp_path / name, **(settings | changes))


def start(config: Path, *args, command: str = "train", **kwargs) -> subprocess.Popen:
    return subprocess.Popen(
        [PROGRAM, command, config, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def wait_for_step(run: Path, step: int, process: subprocess.Popen) -> None:
    while process.poll() is None:
        metrics = run / "metrics.jsonl"
        if metrics.exists() and any(f'"step":{step},' in line for line in metrics.read_text().splitlines()):
            return
        time.sleep(0.005)
    raise AssertionError(process.communicate())


def wait_for_line(process: subprocess.Popen, part: str) -> str:
    """The first line of standard error that holds `part`."""
    for line in process.stderr:
        if part in line:
            return line
    raise AssertionError(f"ended without {part!r}")


def steps_of(run: Path) -> list[int]:
    return [line["step"] for line in read_metrics(run)]


def stands_at(run: Path) -> int:
    """The step that the pointer file names."""
    return int((run / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())
