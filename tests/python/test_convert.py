"""augur convert against the Python packages gguf, safetensors, tokenizers and transformers."""

import json
import struct

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from conftest import ROOT, run_augur
from gguf_files import HEADS, TYPES, expected_tensors, random_blocks, write_model
from published import smollm2_model, tokenizer_directory
from tokenizer_zoo import random_texts, written_texts


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def fault(*args) -> str:
    done = run_augur("convert", *args, check=False)
    assert done.returncode == 2, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", TYPES)
def test_dequantised_values_equal_gguf_bit_for_bit(tmp_path, arch, kind):
    tensors = write_model(tmp_path / "m.gguf", arch, [kind], seed=len(kind) + TYPES.index(kind))
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out")
    got, expected = load_file(tmp_path / "out" / "model.safetensors"), expected_tensors(arch, tensors)
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert same_bits(got[name], values), name


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_dequantises_blocks_of_any_bytes(tmp_path, kind):
    """Scales of every size, infinite and NaN ones too; NaNs are compared as NaNs."""
    rng = np.random.default_rng(7)

    def any_bytes(shape):
        return rng.integers(0, 256, random_blocks(rng, shape, kind).view(np.uint8).shape, dtype=np.uint8)

    tensors = write_model(tmp_path / "m.gguf", "llama", [kind])
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    data, ggml = tensors["token_embd.weight"]
    blocks = any_bytes(data.shape if kind in ("F32", "F16") else (320, 256))
    place = raw.index(data.tobytes())
    raw[place : place + len(blocks.tobytes())] = blocks.tobytes()
    (tmp_path / "m.gguf").write_bytes(raw)
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out")
    got = load_file(tmp_path / "out" / "model.safetensors")["model.embed_tokens.weight"]
    expected = quants.dequantize(blocks.reshape(320, -1), ggml).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    finite = ~np.isnan(expected)
    assert same_bits(got[finite], expected[finite])


@pytest.mark.parametrize(
    "arch,head_dim,tied",
    [
        ("llama", 64, True),
        ("llama", 32, False),
        ("qwen2", 64, False),
        ("qwen3", 128, True),
        ("qwen3", 64, False),
    ],
)
def test_transformers_reads_it_as_it_reads_the_gguf_file(tmp_path, arch, head_dim, tied):
    types = ["Q8_0", "Q4_1"] if head_dim == 32 else ["Q8_0", "Q4_K", "Q6_K"]
    write_model(tmp_path / "m.gguf", arch, types, head_dim, tied, "qwen2", tokenizer=True)
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert ours.dtype == torch.float32
    theirs = load_gguf_checkpoint(str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=ours)
    state = ours.state_dict()
    assert theirs["tensors"].keys() == state.keys() - ({"lm_head.weight"} if tied else set())
    for name, tensor in theirs["tensors"].items():
        assert torch.equal(state[name], tensor), name
    for key, value in theirs["config"].items():
        if key in ("_model_name_or_path", "rope_theta"):
            continue
        ours_value = getattr(ours.config, key)
        assert ours_value == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6)), key
    with torch.no_grad():
        assert torch.isfinite(ours(torch.tensor([[5, 7, 11, 300, 2, 9]])).logits).all()


def test_the_config_says_what_the_metadata_says(tmp_path):
    write_model(tmp_path / "m.gguf", "qwen3", head_dim=128, tied=False, pre="qwen2", tokenizer=True)
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out")
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("qwen3", 2, 256)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (HEADS, 2, 128)
    assert (config.intermediate_size, config.vocab_size, config.max_position_embeddings) == (512, 320, 512)
    assert config.rms_norm_eps == 1e-5
    assert config.rope_parameters["rope_theta"] == 50000.0
    assert (config.eos_token_id, config.bos_token_id, config.tie_word_embeddings) == (258, 258, False)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == 258


def llama3_factors(factor: float, head_dim: int = 64, theta: float = 50000.0) -> np.ndarray:
    """As llama.cpp's converter computes them."""
    freqs = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    factors = []
    for freq in freqs:
        wavelen = 2 * np.pi / freq
        if wavelen < 8192 / 4:
            factors.append(1.0)
        elif wavelen > 8192:
            factors.append(factor)
        else:
            smooth = (8192 / wavelen - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def test_llama3_rope_scaling_is_recovered_from_its_factors(tmp_path):
    factors = llama3_factors(8.0)
    write_model(tmp_path / "m.gguf", change=lambda w: w.add_tensor("rope_freqs.weight", factors))
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.rope_parameters["rope_type"] == "llama3"
    plain = 1.0 / (50000.0 ** (np.arange(0, 64, 2) / 64))
    np.testing.assert_allclose(model.model.rotary_emb.inv_freq.numpy(), plain / factors, rtol=1e-5)
    factors[3] = 5
    write_model(tmp_path / "bad.gguf", change=lambda w: w.add_tensor("rope_freqs.weight", factors))
    assert "does not hold the frequency factors of Llama 3" in fault(tmp_path / "bad.gguf", tmp_path / "bad")


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_of_the_metadata_reaches_the_config(tmp_path, kind):
    def scale(writer):
        writer.add_string("llama.rope.scaling.type", kind)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(128)

    write_model(tmp_path / "m.gguf", change=scale)
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out")
    rope = AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["rope_theta"]) == (kind, 4.0, 50000.0)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_narrow_types_round_as_torch_does(tmp_path, dtype):
    from safetensors.torch import load_file as load_torch

    tensors = write_model(tmp_path / "m.gguf", types=["F32", "Q4_1"], seed=3)
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out", "--dtype", dtype)
    got = load_torch(tmp_path / "out" / "model.safetensors")
    for name, values in expected_tensors("llama", tensors).items():
        rounded = torch.from_numpy(values).to(torch.bfloat16 if dtype == "bf16" else torch.float16)
        assert torch.equal(got[name].view(torch.int16), rounded.view(torch.int16)), name


def test_fp16_refuses_values_beyond_its_range(tmp_path):
    tensors = write_model(tmp_path / "m.gguf")
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    place = raw.index(tensors["blk.1.ffn_up.weight"][0].tobytes())
    raw[place : place + 4] = struct.pack("<f", 70000.0)
    (tmp_path / "m.gguf").write_bytes(raw)
    message = fault(tmp_path / "m.gguf", tmp_path / "out", "--dtype", "fp16")
    assert "blk.1.ffn_up.weight is too large for fp16; use --dtype bf16 or fp32" in message
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob("out.*"))


# Texts on which the ways of splitting differ.
TEXTS = [
    "the x    7",
    "1234567 he'Ll <think>the<|im_end|>\n\n  the",
    "e\u0301 \u00e9 漢字 😀",
    "\r\n a\t b  ",
]


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "llama-bpe"])
def test_the_tokenizer_splits_text_as_its_family_does(tmp_path, pre):
    write_model(tmp_path / "m.gguf", pre=pre, tokenizer=True)
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    auto = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.get_vocab_size() == 260
    assert tokenizer.token_to_id("<think>") == 259
    assert auto.eos_token_id == 258 and auto.chat_template == "{{ messages }}"
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert auto(text).input_ids == ids
        bare = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == ([258, *bare] if pre == "llama-bpe" else bare)
        if pre != "qwen2":  # which composes characters
            assert tokenizer.decode(bare, skip_special_tokens=False) == text
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("x    12345")]
    assert (
        pieces
        == {
            "smollm": ["x", "ĠĠĠĠ", "1", "2", "3", "4", "5"],
            "qwen2": ["x", "ĠĠĠ", "Ġ", "1", "2", "3", "4", "5"],
            "llama-bpe": ["x", "ĠĠĠ", "Ġ", "123", "45"],
        }[pre]
    )


@pytest.mark.slow
def test_the_qwen3_tokenizer_survives_a_trip_through_gguf(tmp_path):
    """Vocabulary, merges, added tokens and ids as in the published file."""
    published = tokenizer_directory("qwen3") / "tokenizer.json"
    source = json.loads(published.read_text())
    tokens = list(source["model"]["vocab"]) + [t["content"] for t in source["added_tokens"]]
    kinds = [1] * 151643 + [3 if t["special"] else 4 for t in source["added_tokens"]]

    def tokenizer(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges([" ".join(pair) for pair in source["model"]["merges"]])
        rows = np.zeros((151936, 256), dtype=np.float16)
        writer.add_tensor("token_embd.weight", rows)

    write_model(tmp_path / "m.gguf", "qwen3", change=tokenizer, drop=("token_embd.weight",))
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out", "--dtype", "bf16")
    made = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    made["model"]["merges"] = [merge.split(" ") for merge in made["model"]["merges"]]
    assert made == source
    ours = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    theirs = Tokenizer.from_file(str(published))
    for text in written_texts() + random_texts(seed=7, count=300):
        assert ours.encode(text).ids == theirs.encode(text).ids, repr(text)


def test_names_what_it_cannot_convert(tmp_path):
    out = tmp_path / "out"

    def after(**kwargs) -> str:
        write_model(tmp_path / "m.gguf", **kwargs)
        return fault(tmp_path / "m.gguf", out)

    assert "the architecture is 'gemma2'; augur convert reads llama, qwen2 or qwen3" in after(arch="gemma2")
    assert "tensor blk.1.ffn_up.weight is missing" in after(drop=("blk.1.ffn_up.weight",))
    assert "token_embd.weight is missing" in after(drop=("token_embd.weight",))
    extra = np.zeros(4, dtype=np.float32)
    message = after(change=lambda w: w.add_tensor("blk.0.extra.weight", extra))
    assert "tensor 'blk.0.extra.weight' has no place" in message
    message = after(change=lambda w: w.add_tensor("output_norm.weight", extra), drop=("output_norm.weight",))
    assert "tensor output_norm.weight has shape [4], not [256]" in message
    assert "is a mixture of experts" in after(change=lambda w: w.add_expert_count(8))
    assert "one part of a split file" in after(change=lambda w: w.add_uint16("split.count", 2))
    assert "does not say how its tokenizer splits text; name one with --pre" in after(tokenizer=True)
    assert "splits text the way 'gpt-4o'" in after(tokenizer=True, pre="gpt-4o")
    assert "of kind 'llama', not byte-level BPE" in after(change=lambda w: w.add_tokenizer_model("llama"))
    assert '"llama.rope.scaling.type" is not a string' in after(
        change=lambda w: w.add_uint32("llama.rope.scaling.type", 1)
    )
    message = after(change=lambda w: w.add_float32("llama.rope.scaling.factor", float("nan")))
    assert '"llama.rope.scaling.factor" is nan; it must be a positive number' in message
    assert not out.exists() and not list(tmp_path.glob("out.*"))


def test_names_what_is_wrong_with_a_tokenizer(tmp_path):
    def after(tokens: list, merges: list, kinds: list | None = None) -> str:
        def change(writer):
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("smollm")
            writer.add_token_list(tokens)
            writer.add_token_types(kinds or [1] * len(tokens))
            writer.add_token_merges(merges)

        write_model(tmp_path / "m.gguf", change=change)
        return fault(tmp_path / "m.gguf", tmp_path / "out")

    assert "merge 1 ('b c') names 'bc', which is not in the vocabulary" in after(["a", "b", "c", "ab"], ["a b", "b c"])
    assert "merge 0 is 'a', not two tokens" in after(["a"], ["a"])
    assert "token 'a' has two ids, 0 and 2" in after(["a", "b", "a"], ["a b"])
    assert "400 tokens but an embedding of 320 rows" in after([str(i) for i in range(400)], ["1 2"])
    assert "which is not UTF-8" in after([b"a", b"\xff"], ["a a"])
    assert "2 tokens but 1 token types" in after(["a", "b"], ["a b"], [1])
    run_augur("convert", tmp_path / "m.gguf", tmp_path / "out", "--no-tokenizer")
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_names_an_unsupported_quantisation(tmp_path):
    blocks = np.zeros((320, 84), dtype=np.uint8)
    q2_k = GGMLQuantizationType.Q2_K
    write_model(
        tmp_path / "m.gguf",
        change=lambda w: w.add_tensor("token_embd.weight", blocks, raw_dtype=q2_k),
        drop=("token_embd.weight",),
    )
    message = fault(tmp_path / "m.gguf", tmp_path / "out")
    assert "tensor 'token_embd.weight' has GGML type Q2_K, which Augur does not read; use a file with F32" in message


def test_never_overwrites_what_it_was_not_told_to(tmp_path):
    write_model(tmp_path / "m.gguf")
    out = tmp_path / "out"
    out.mkdir()
    run_augur("convert", tmp_path / "m.gguf", f"{out}/")  # an empty directory is filled
    assert "the directory is not empty; name another, or replace it with --force" in fault(tmp_path / "m.gguf", out)
    (out / "old").write_text("")
    run_augur("convert", tmp_path / "m.gguf", out, "--force")
    assert not (out / "old").exists() and (out / "model.safetensors").exists()
    (out / "config.json").unlink()
    assert "--force replaces model directories only" in fault(tmp_path / "m.gguf", out, "--force")
    assert "is a file" in fault(tmp_path / "m.gguf", tmp_path / "m.gguf")
    assert "unknown type 'bf61'; did you mean 'bf16'?" in fault(tmp_path / "m.gguf", out, "--dtype", "bf61")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "out"]


def test_an_interrupted_write_leaves_nothing(tmp_path):
    """A limit on file size fails the write half-way, as a full disk does."""
    import subprocess

    write_model(tmp_path / "m.gguf")
    command = f"trap '' XFSZ; ulimit -f 100; exec {ROOT}/build/augur convert {tmp_path}/m.gguf {tmp_path}/out"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 2 and "model.safetensors: cannot write: File too large" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


@pytest.fixture(scope="module")
def smollm2():
    return smollm2_model()


@pytest.mark.slow
def test_smollm2_tokenizes_as_published(smollm2):
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    auto = AutoTokenizer.from_pretrained(smollm2)
    assert (auto.bos_token, auto.eos_token, auto.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    published = Tokenizer.from_file(str(tokenizer_directory("smollm2") / "tokenizer.json"))
    for text in written_texts() + random_texts(seed=8, count=300):
        ids = published.encode(text).ids
        assert tokenizer.encode(text).ids == ids and auto(text).input_ids == ids, repr(text)


def test_smollm2_answers_a_question(smollm2):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
