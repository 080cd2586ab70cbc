"""Small tokenizers trained on the spot with the `tokenizers` package, and random texts to try them on."""

import json
import random
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
# A pattern without a scanner of its own.
OTHER = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|\p{N}{1,2}| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|[一-龥]+"

_CORPUS = [
    "The quick brown fox jumps over the lazy dog; it's what they're doing, isn't it? 1234567890 times 42.",
    "def main(argv):\n    for i in range(10):\n        print(f'{i:>3}', argv[i] == \"x\")\r\n\treturn 0\n\n",
    "今天天气很好,我们去公园散步吧。東京都に住んでいます。안녕하세요 세계! Привет, мир. Γειά σου κόσμε",
    "café naïve Ångström e\u0301le\u0300ve — “quoted” … 😀👍🏽 ½ ² ٣٤٥ हिन्दी ไทย עברית مرحبا",
    "WHAT'S THAT? I'LL SEE.    four   spaces\t\ttabs\n\n\nnewlines  \n  mixed \u00a0\u2003\u3000 ends ",
]


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _digits(individual: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=individual),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


PRE_TOKENIZERS = {
    "gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "prefix": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
    "smollm2": lambda: _digits(True),
    "digit_runs": lambda: _digits(False),
    "qwen2": lambda: _split(QWEN2),
    "llama3": lambda: _split(LLAMA3),
    "other": lambda: _split(OTHER),
    "literal": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Split("an", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


def train(kind: str, seed: int = 0, *, alphabet: bool = True, drop_merges: float = 0.0) -> dict:
    """The tokenizer.json (as an object) of a byte-level BPE with some four hundred tokens.

    Without `alphabet` bytes that the corpus lacks have no token. `drop_merges` is the share of merges left
    out, so that some tokens can only be reached where merges are ignored.
    """
    rng = random.Random(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[kind]()
    tokenizer.decoder = decoders.ByteLevel()
    if kind in ("qwen2", "other"):
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    tokenizer.add_tokens(
        [
            AddedToken("<think>", normalized=False),
            AddedToken("<thin", normalized=False),
            AddedToken("WORD", single_word=True),
            AddedToken("[l]", lstrip=True),
            AddedToken("[r]", rstrip=True, normalized=False),
            AddedToken(" [b] ", lstrip=True, rstrip=True, normalized=False),
            AddedToken("e\u0301!", normalized=True),
            AddedToken("é?", normalized=False, special=True),
        ]
    )
    spec = json.loads(tokenizer.to_str())
    spec["model"]["merges"] = [m for m in spec["model"]["merges"] if rng.random() >= drop_merges]
    return spec


def save(spec: dict, directory: Path) -> Tokenizer:
    """Writes tokenizer.json into `directory` and returns what `tokenizers` makes of it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


_SPACES = " \t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u180e\u2000\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
_WORDS = [
    *("the", "The", " quick", "don't", "I'LL", "'s", "'S", "'ſ", "'re", "'VE", "'d", "'l", "'ll", "’s"),
    *(
        "def ",
        "return",
        "==",
        "!=",
        "...",
        "()",
        "{",
        "}\n",
        "//",
        "\n\n",
        "  ",
        "\r\n",
        " \n ",
        "12",
        "3456789",
    ),
    *(
        "今天",
        "天气",
        "。",
        "東京",
        "안녕",
        "мир",
        "café",
        "e\u0301",
        "n\u0303",
        "한",
        "हिन्दी",
        "😀",
        "👨‍👩‍👧",
        "ǅ",
    ),
    *(
        "<|end|>",
        "<|start|>",
        "<think>",
        "<thin",
        "WORD",
        "[l]",
        "[r]",
        " [b] ",
        "é!",
        "e\u0301!",
        "é?",
        "e\u0301?",
    ),
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "</think>",
        "<tool_call>",
        "<file_sep>",
        "<|im",
        "_",
        "½",
    ),
]
_RANGES = [
    *(
        (0x00, 0x7F),
        (0x80, 0x24F),
        (0x300, 0x36F),
        (0x370, 0x5FF),
        (0x600, 0x8FF),
        (0x900, 0xDFF),
        (0xE00, 0x11FF),
    ),
    *(
        (0x1AB0, 0x1AFF),
        (0x1E00, 0x20FF),
        (0x2100, 0x2BFF),
        (0x3000, 0x30FF),
        (0x4E00, 0x9FFF),
        (0xA700, 0xABFF),
    ),
    *((0xAC00, 0xD7A3), (0xF900, 0xFFFD), (0x10000, 0x11FFF), (0x13000, 0x1467F), (0x16100, 0x16FFF)),
    *((0x1CC00, 0x1E9FF), (0x1F000, 0x1FAFF), (0x20000, 0x323AF), (0xE0000, 0xE01EF), (0x40000, 0x10FFFF)),
]


def _piece(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(_WORDS)
    if kind < 0.6:
        return rng.choice(_SPACES) * rng.choice([1, 1, 1, 2, 5])
    low, high = rng.choice(_RANGES)
    text = "".join(chr(rng.randint(low, high)) for _ in range(rng.choice([1, 1, 2, 5])))
    return unicodedata.normalize("NFD", text) if rng.random() < 0.2 else text


def random_text(rng: random.Random) -> str:
    """Valid Unicode of up to some eighty characters, rich in what tokenizers disagree about."""
    return "".join(_piece(rng) for _ in range(rng.randint(0, 30)))


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [random_text(rng) for _ in range(count)]


def written_texts() -> list[str]:
    """What people write: this project's prose, code and data, in lines and in whole, and the languages above."""
    texts = list(_CORPUS)
    root = Path(__file__).resolve().parents[2]
    for name in (
        "README.md",
        "docs/masks.md",
        "src/text/bpe.cc",
        "python/augur/masks.py",
        "src/report/page/a_basics.js",
    ):
        whole = (root / name).read_text()
        texts += [whole, *whole.splitlines(keepends=True)]
    texts += [" " * n + "x" + "\n" * n + "\t" * n + "1" * n for n in range(9)]
    texts += [
        "<|im_start|>user\nHi<|im_end|>\n",
        "a<|endoftext|>b",
        "<think>\n\n</think>",
        " <|im_end|> ",
        "<|im_start",
    ]
    return texts
