"""Writes config and tokenizer of the bundled tiny model: python recipes/make-tiny-tokenizer.py models/tiny

A Qwen3 of 0.8 million parameters whose vocabulary has one token for each number 0..255 (with the space before it),
digits and a few signs. The tokenizer is byte-level BPE without merges: a word that is in the vocabulary is one token
(ignore_merges), and a space is put before the first word.
"""

import json
import sys
from pathlib import Path

NUMBERS = 256
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPACE = "\u0120"  # how byte-level BPE writes a space


def vocabulary() -> list[str]:
    numbers = [f"{SPACE}{n}" for n in range(NUMBERS)]
    return numbers + [SPACE, *"0123456789", "=", f"{SPACE}="]


def tokenizer(vocab: list[str]) -> dict:
    added = [
        {"id": len(vocab) + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, token in enumerate(SPECIAL)
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": True,
        "vocab": {token: i for i, token in enumerate(vocab)},
        "merges": [],
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def config(vocab_size: int, end: int) -> dict:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "eos_token_id": end,
        "pad_token_id": None,
        "bos_token_id": None,
        "use_cache": True,
    }


def main(directory: Path) -> None:
    vocab = vocabulary()
    end = len(vocab)
    files = {
        "tokenizer.json": tokenizer(vocab),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0]}
        | {"pad_token": SPECIAL[0], "clean_up_tokenization_spaces": False, "model_max_length": 256},
        "generation_config.json": {"eos_token_id": end, "pad_token_id": end, "do_sample": True},
        "config.json": config(len(vocab) + len(SPECIAL), end),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
