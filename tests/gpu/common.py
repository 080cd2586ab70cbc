"""What the scripts here share: a random Qwen3 with a tokenizer of its own, a data set, a reward, times and checks."""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback

SPECIAL = ["<pad>", "<eos>", "<|im_end|>", "\n"]  # the last two because verl looks for them in a Qwen3
# Qwen3-0.6B's shape, and a smaller one for what does not need its size.
SHAPES = {
    "0.6b": dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, head_dim=128),
    "small": dict(vocab_size=8192, hidden_size=512, intermediate_size=1536, num_hidden_layers=4, head_dim=64),
}
LENGTH = 1024


def arguments(description: str, **more: dict) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("work", type=Path, help="a folder for the model and what a run writes")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    for name, settings in more.items():
        parser.add_argument(name, **settings)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    return options


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """One word for each id, so that every token a random model samples is text and back."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    words = SPECIAL + [f"w{i}" for i in range(len(SPECIAL), vocab_size)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([AddedToken("\n", normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return fast


def make_model(directory: Path, shape: str, dtype: torch.dtype = torch.bfloat16) -> str:
    """A random Qwen3 whose distributions are neither flat nor certain: logits with a deviation near 4."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = Qwen3Config(
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        **SHAPES[shape],
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(4 / (0.02 * config.hidden_size**0.5))
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
    model.to(dtype).save_pretrained(directory)
    make_tokenizer(config.vocab_size).save_pretrained(directory)
    return str(directory)


def prompts(count: int, words: int = 32) -> list[str]:
    return [" ".join(f"w{2 + (i * 37 + j * 11) % 4000}" for j in range(words + i % 7)) for i in range(count)]


def reward(completions: list, **_) -> list[float]:
    """With spread: the share of words with an even number."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [sum(word[-1] in "02468" for word in text.split()) / max(1, len(text.split())) for text in texts]


class Times:
    """Before a trainer of TRL's in the order of bases: seconds of each generation and of each whole step."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.generations, self.steps = [], []
        self.add_callback(_StepTimes(self))

    def _generate_and_score_completions(self, inputs: list) -> dict:
        start = now()
        output = super()._generate_and_score_completions(inputs)
        self.generations.append(now() - start)
        return output

    def summary(self, warm_up: int = 2) -> dict[str, float]:
        """Means in milliseconds after the first generations, which compile kernels and capture graphs."""
        every = len(self.steps) // len(self.generations)
        generation = self.generations[warm_up:]
        whole = self.steps[warm_up * every :]
        spent = sum(generation) / len(generation)
        step = sum(whole) / len(whole)
        return {
            "generation_ms": round(1e3 * spent, 1),
            "update_ms": round(1e3 * (step - spent / every), 1),
            "step_ms": round(1e3 * step, 1),
        }


class _StepTimes(TrainerCallback):
    def __init__(self, trainer: Times) -> None:
        self._trainer = trainer

    def on_step_begin(self, *_, **__) -> None:
        self._start = now()

    def on_step_end(self, *_, **__) -> None:
        self._trainer.steps.append(now() - self._start)


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def history(trainer: object, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def mask_figures(trainer: object) -> dict[str, float]:
    outside, divergence = history(trainer, "mask/outside"), history(trainer, "mask/divergence")
    return {
        "outside_first": outside[0],
        "outside_most": max(outside),
        "divergence_first": divergence[0],
        "divergence_most": max(divergence),
        "masked_most": max(history(trainer, "mask/masked")),
        "missing_most": max(history(trainer, "mask/missing")),
        "one_pass": history(trainer, "mask/one_pass")[-1],
    }


def compare_support(batch: dict, answers: list[list[dict[int, float]]]) -> tuple[int, float]:
    """The batch's support against vLLM's own answers, one dictionary of log-probs for each token of each response.
    Returns the number of log-probs compared and the largest difference; a token or candidate too many or missing is an
    infinite one."""
    count, worst = 0, 0.0
    mask = batch["completion_mask"].bool().cpu()
    ids, logprobs = batch["support_ids"].cpu(), batch["support_logprobs"].cpu()
    for row, rows in enumerate(answers):
        used = mask[row].nonzero()[:, 0].tolist()
        if len(used) != len(rows):
            return count, float("inf")
        for position, answer in zip(used, rows, strict=True):
            pairs = zip(ids[row, position].tolist(), logprobs[row, position].tolist(), strict=True)
            ours = {i: x for i, x in pairs if i >= 0}
            if ours.keys() != answer.keys() or ids[row, position, 0] != batch["completion_ids"][row, position].item():
                return count, float("inf")
            count += len(ours)
            worst = max([worst, *(abs(ours[i] - answer[i]) for i in ours)])
    return count, worst


class Report:
    """Prints figures as they come, and ends the process with 1 if a check failed."""

    def __init__(self, name: str) -> None:
        self.name, self.failed = name, []
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        self.figures(device=device, torch=torch.__version__)

    def figures(self, **values: object) -> None:
        print(self.name, json.dumps(values), flush=True)

    def check(self, what: str, holds: bool) -> None:
        print(f"{self.name} {'ok    ' if holds else 'FAILED'} {what}", flush=True)
        if not holds:
            self.failed.append(what)

    def check_mask(self, figures: dict[str, float], one_pass: bool, outside: float = 0.01) -> None:
        self.check("every token has its support (mask/missing = 0)", figures["missing_most"] == 0)
        self.check(f"mask/outside at the first update is at most {outside}", figures["outside_first"] <= outside)
        self.check(f"one pass over the head: {one_pass}", figures["one_pass"] == float(one_pass))

    def end(self) -> None:
        print(f"{self.name} {'FAILED: ' + '; '.join(self.failed) if self.failed else 'passed'}", flush=True)
        sys.exit(1 if self.failed else 0)
