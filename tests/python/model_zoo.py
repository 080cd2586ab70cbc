"""Small random models of every family, made by transformers."""

import json
import random
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)
from transformers.utils import logging

logging.disable_progress_bar()

VOCAB = 97
SMALL = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
SPARSE = dict(SMALL, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=3, head_dim=16)

FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, SMALL),
    "llama-tied": (LlamaForCausalLM, LlamaConfig, SMALL | dict(tie_word_embeddings=True)),
    "llama-bias": (LlamaForCausalLM, LlamaConfig, SMALL | dict(attention_bias=True, mlp_bias=True)),
    "llama-no-groups": (LlamaForCausalLM, LlamaConfig, SMALL | dict(num_key_value_heads=6, head_dim=10)),
    "llama3-rope": (LlamaForCausalLM, LlamaConfig, SMALL | dict(rope_parameters=LLAMA3_ROPE)),
    "llama-pad": (LlamaForCausalLM, LlamaConfig, SMALL | dict(pad_token_id=5, rms_norm_eps=1e-5)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, SMALL | dict(rope_parameters=dict(rope_theta=1e6))),
    "qwen2-tied": (Qwen2ForCausalLM, Qwen2Config, SMALL | dict(tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, SMALL | dict(head_dim=20)),
    "qwen3-tied-bias": (
        Qwen3ForCausalLM,
        Qwen3Config,
        SMALL | dict(head_dim=32, tie_word_embeddings=True, attention_bias=True),
    ),
    "qwen3-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, SPARSE | dict(norm_topk_prob=False)),
    "qwen3-moe-norm": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        SPARSE | dict(norm_topk_prob=True, mlp_only_layers=[1]),
    ),
    "qwen3-moe-odd": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        SPARSE | dict(hidden_size=42, moe_intermediate_size=11, num_experts=5, head_dim=6, norm_topk_prob=True),
    ),
    "mistral": (MistralForCausalLM, MistralConfig, SMALL | dict(head_dim=10, sliding_window=None)),
    "mistral-window": (MistralForCausalLM, MistralConfig, SMALL | dict(hidden_size=36, sliding_window=200)),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config, SMALL | dict(hidden_size=60)),
    "olmo2-bias": (
        Olmo2ForCausalLM,
        Olmo2Config,
        SMALL | dict(attention_bias=True, num_key_value_heads=1, tie_word_embeddings=True, pad_token_id=None),
    ),
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config, SMALL | dict(no_rope_layer_interval=2, pad_token_id=None)),
    "smollm3-bias": (
        SmolLM3ForCausalLM,
        SmolLM3Config,
        SMALL
        | dict(
            no_rope_layers=[0, 1, 0],
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
            pad_token_id=None,
        ),
    ),
    "qwen3-moe-step": (Qwen3MoeForCausalLM, Qwen3MoeConfig, SPARSE | dict(decoder_sparse_step=2)),
}


def make_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A model with weights large enough that every part of it shows in the log-probabilities."""
    model_class, config_class, fields = FAMILIES[name]
    torch.manual_seed(seed)
    config = config_class(**fields)
    config._experts_implementation = "eager"  # its grouped products refuse odd sizes
    model = model_class(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.15 * torch.randn_like(parameter))
    return model


def make_sequences(lengths: list[int], seed: int = 0, vocab: int = VOCAB) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(length)] for length in lengths]


def log_probs(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """What transformers gives each token from the second on."""
    logits = model(torch.tensor([tokens])).logits[0, :-1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[1:, None])[:, 0]


def as_lines(sequences: list[list[int]]) -> str:
    return "".join(json.dumps({"tokens": tokens}) + "\n" for tokens in sequences)


def edit_config(directory: Path, **changes) -> None:
    """Sets keys of config.json; a value of None removes the key."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
