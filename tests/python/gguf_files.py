"""Small GGUF models for the tests, written with the Python package gguf."""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType, quants

# Hidden sizes are whole K-quant blocks of 256.
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, LAYERS, VOCABULARY = 256, 512, 4, 2, 2, 320
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]

# GGUF name -> Hugging Face name, as published for these architectures.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...], type_name: str) -> np.ndarray:
    """Random quantised data of a shape: any bytes, but small scales, so that a model stays finite."""
    kind = GGMLQuantizationType[type_name]
    if type_name in ("F32", "F16"):
        return (rng.standard_normal(shape) * 0.05).astype(np.float32 if type_name == "F32" else np.float16)
    if type_name == "BF16":
        return quants.quantize((rng.standard_normal(shape) * 0.05).astype(np.float32), kind)
    block, size = GGML_QUANT_SIZES[kind]
    count = int(np.prod(shape)) // block
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    places = {"Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q6_K": [208]}.get(type_name, [0, 2])
    for place in places:
        scale = (rng.standard_normal(count) * (0.0005 if "K" in type_name else 0.005)).astype(np.float16)
        blocks[:, place : place + 2] = scale.view(np.uint8).reshape(count, 2)
    return blocks.reshape(*shape[:-1], shape[-1] // block * size)


def model_shapes(arch: str, head_dim: int, tied: bool) -> dict[str, tuple[int, ...]]:
    q, k = HEADS * head_dim, KV_HEADS * head_dim
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (VOCABULARY, HIDDEN)
    for i in range(LAYERS):
        layer = {
            "attn_norm.weight": (HIDDEN,),
            "attn_q.weight": (q, HIDDEN),
            "attn_k.weight": (k, HIDDEN),
            "attn_v.weight": (k, HIDDEN),
            "attn_output.weight": (HIDDEN, q),
            "ffn_norm.weight": (HIDDEN,),
            "ffn_gate.weight": (INTERMEDIATE, HIDDEN),
            "ffn_up.weight": (INTERMEDIATE, HIDDEN),
            "ffn_down.weight": (HIDDEN, INTERMEDIATE),
        }
        if arch == "qwen2":
            layer |= {"attn_q.bias": (q,), "attn_k.bias": (k,), "attn_v.bias": (k,)}
        if arch == "qwen3":
            layer |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def hf_name(gguf_name: str) -> str:
    outer = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if gguf_name in outer:
        return outer[gguf_name]
    _, layer, part, suffix = gguf_name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"


def unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of llama.cpp's permutation of query and key rows."""
    return (
        values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def expected_tensors(arch: str, tensors: dict) -> dict[str, np.ndarray]:
    """What a conversion must hold: gguf's own dequantised values under Hugging Face names."""
    expected = {}
    for name, (data, kind) in tensors.items():
        values = quants.dequantize(data, kind)
        if arch == "llama" and ("attn_q." in name or "attn_k." in name):
            values = unpermute(values, HEADS if "attn_q." in name else KV_HEADS)
        expected[hf_name(name)] = values
    return expected


def add_byte_tokenizer(writer: GGUFWriter, pre: str | None) -> list[str]:
    """The 256 byte symbols, two merges, a special and a user-defined token, and padding to the vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    tokens = [*symbols, "he", "Ġt", "<|im_end|>", "<think>"]
    kinds = [TokenType.NORMAL] * 258 + [TokenType.CONTROL, TokenType.USER_DEFINED]
    while len(tokens) < VOCABULARY:
        kinds.append(TokenType.UNUSED)
        tokens.append(f"[PAD{len(tokens)}]")
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["h e", "Ġ t"])
    writer.add_eos_token_id(258)
    writer.add_bos_token_id(258)
    writer.add_chat_template("{{ messages }}")
    return tokens


def write_model(
    path: Path,
    arch: str = "llama",
    types: list[str] | None = None,
    head_dim: int = 64,
    tied: bool = True,
    pre: str | None = None,
    tokenizer: bool = False,
    seed: int = 0,
    change=lambda writer: None,
    drop: tuple[str, ...] = (),
) -> dict:
    """Writes a model whose matrices take the given types in turn; returns its tensors as (data, type)."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    if head_dim * HEADS != HIDDEN or arch == "qwen3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch == "llama":
        writer.add_rope_dimension_count(head_dim)
        writer.add_vocab_size(VOCABULARY)
    if tokenizer:
        add_byte_tokenizer(writer, pre)
    change(writer)
    tensors = {}
    for index, (name, shape) in enumerate(model_shapes(arch, head_dim, tied).items()):
        if name in drop:
            continue
        kind = "F32" if len(shape) == 1 else (types or ["F32"])[index % len(types or ["F32"])]
        data = random_blocks(rng, shape, kind)
        if "norm" in name:
            data = data + 1
        tensors[name] = (data, GGMLQuantizationType[kind])
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors
