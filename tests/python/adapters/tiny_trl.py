"""A tiny random model, its tokenizer, a data set of sums and a reward: what the TRL tests train."""

import pytest
import torch
import trl
from datasets import Dataset
from packaging.version import Version
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from augur.trl import AugurGRPOConfig, AugurGRPOTrainer

CHARACTERS = "0123456789+-*=ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SPECIAL = ["<pad>", "<eos>"]
VOCAB = len(CHARACTERS) + len(SPECIAL)


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def make_qwen3(seed: int = 0, **changes) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    shape = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = Qwen3ForCausalLM(Qwen3Config(**(shape | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)  # far enough from uniform that the tail matters
    return model


def make_data(rows: int = 64) -> Dataset:
    return Dataset.from_dict({"prompt": [f"{i % 10}+{i % 7}=" + "A" * (i % 5) for i in range(rows)]})


def count_digits(completions, **_):
    """A reward with spread: the share of digits."""
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


def make_config(output_dir, **changes) -> AugurGRPOConfig:
    settings = dict(
        output_dir=str(output_dir),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=7,
        steps_per_generation=4,
        learning_rate=3e-2,
        lr_scheduler_type="constant",
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=5,
        support_size=20,
    )
    return AugurGRPOConfig(**(settings | changes))


def make_trainer(output_dir, model=None, trainer_class=AugurGRPOTrainer, peft_config=None, **changes):
    model = model or make_qwen3()
    if "beta" in changes:  # TRL loads the reference model from where the model came from
        model.save_pretrained(f"{output_dir}/model")
        model = type(model).from_pretrained(f"{output_dir}/model")
    trainer = trainer_class(
        model=model,
        reward_funcs=count_digits,
        args=make_config(output_dir, **changes),
        train_dataset=make_data(),
        processing_class=make_tokenizer(),
        peft_config=peft_config,
    )
    return skip_without_head(trainer)


def skip_without_head(trainer):
    if trainer._head is None and Version(trl.__version__) < Version("1.16") and not torch.cuda.is_available():
        pytest.skip("the head of TRL 1.15 itself runs on a GPU alone")
    return trainer
