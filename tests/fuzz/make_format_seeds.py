"""Writes the seeds of the file-format fuzzers: small valid files for libFuzzer to start from.

Run from the root of the project: .venv/bin/python tests/fuzz/make_format_seeds.py
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from safetensors.numpy import save_file

SEEDS = Path(__file__).parent / "seeds"
HIDDEN, FFN, VOCABULARY = 32, 32, 4


def write_safetensors() -> None:
    folder = SEEDS / "formats_safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({}, folder / "empty.safetensors")
    save_file({"a": np.arange(3, dtype=np.float32)}, folder / "one.safetensors", metadata={"format": "pt"})
    tensors = {
        "m.weight": np.ones((2, 3), dtype=np.float16),
        "m.bias": np.zeros((), dtype=np.int64),
        "none": np.zeros((0, 4), dtype=np.uint8),
        "mask": np.ones(5, dtype=bool),
    }
    save_file(tensors, folder / "several.safetensors")


def tensor(writer: GGUFWriter, name: str, shape: tuple[int, ...], kind: str) -> None:
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rows = (*shape[:-1], shape[-1] // block * size)
    writer.add_tensor(name, np.zeros(rows, dtype=np.uint8), raw_dtype=GGMLQuantizationType[kind])


def write_gguf(arch: str, kind: str, pre: str) -> None:
    folder = SEEDS / "formats_gguf"
    folder.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(folder / f"{arch}-{kind.lower()}.gguf", arch)
    writer.add_block_count(1)
    writer.add_context_length(8)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a", "b", "ab", "<s>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(3)
    tensor(writer, "token_embd.weight", (VOCABULARY, HIDDEN), kind)
    tensor(writer, "output_norm.weight", (HIDDEN,), "F32")
    for name, rows in {"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32}.items():
        tensor(writer, f"blk.0.{name}.weight", (rows, HIDDEN), kind)
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        tensor(writer, f"blk.0.{name}.weight", (HIDDEN, FFN), kind)
    for name in ("attn_norm", "ffn_norm"):
        tensor(writer, f"blk.0.{name}.weight", (HIDDEN,), "F32")
    for name, rows in {"attn_q": 32, "attn_k": 16, "attn_v": 16}.items() if arch == "qwen2" else ():
        tensor(writer, f"blk.0.{name}.bias", (rows,), "F32")
    for name in ("attn_q_norm", "attn_k_norm") if arch == "qwen3" else ():
        tensor(writer, f"blk.0.{name}.weight", (16,), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_k_quants() -> None:
    writer = GGUFWriter(SEEDS / "formats_gguf" / "k-quants.gguf", "llama")
    for kind in ("Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "Q5_0", "Q5_1"):
        tensor(writer, kind, (256,), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_safetensors()
    write_gguf("llama", "Q4_0", "llama-bpe")
    write_gguf("qwen2", "Q4_1", "qwen2")
    write_gguf("qwen3", "Q8_0", "qwen2")
    write_k_quants()
