"""`augur tokenize` gives the ids and texts that the `tokenizers` package gives."""

import json
import random

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from conftest import run_augur_lines
from published import tokenizer_directory
from tokenizer_zoo import LLAMA3, PRE_TOKENIZERS, random_texts, save, train, written_texts


def encode(directory, texts, *flags):
    return [line["ids"] for line in run_augur_lines("tokenize", directory, *flags, lines=[{"text": t} for t in texts])]


def decode(directory, ids, *flags):
    lines = [{"ids": i} for i in ids]
    return [line["text"] for line in run_augur_lines("tokenize", directory, "--decode", *flags, lines=lines)]


def assert_same_ids(directory, tokenizer, texts):
    for text, ids in zip(texts, encode(directory, texts), strict=True):
        assert ids == tokenizer.encode(text, add_special_tokens=False).ids, repr(text)


def assert_same_text(directory, tokenizer, id_lists):
    for skip, flags in ((False, ()), (True, ("--skip-special-tokens",))):
        for ids, text in zip(id_lists, decode(directory, id_lists, *flags), strict=True):
            assert text == tokenizer.decode(ids, skip_special_tokens=skip), ids


@pytest.fixture(scope="session", params=["qwen3", "smollm2"])
def published(request):
    """The directories of published tokenizers."""
    return tokenizer_directory(request.param)


def test_published_tokenizers_agree_on_what_people_write(published):
    tokenizer = Tokenizer.from_file(str(published / "tokenizer.json"))
    texts = written_texts()
    assert_same_ids(published, tokenizer, texts)
    assert_same_text(published, tokenizer, [tokenizer.encode(text).ids for text in texts])


@pytest.mark.slow
def test_published_tokenizers_agree_on_random_unicode(published):
    directory = published
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert_same_ids(directory, tokenizer, random_texts(seed=1, count=3000))
    rng = random.Random(2)
    size = tokenizer.get_vocab_size()
    assert_same_text(directory, tokenizer, [[rng.randrange(size) for _ in range(12)] for _ in range(2000)])


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
@pytest.mark.parametrize(
    "alphabet", [pytest.param(True, id="all_bytes"), pytest.param(False, id="some_bytes", marks=pytest.mark.slow)]
)
def test_trained_tokenizers_agree_on_random_unicode(kind, alphabet, tmp_path):
    tokenizer = save(train(kind, alphabet=alphabet), tmp_path)
    assert_same_ids(tmp_path, tokenizer, random_texts(seed=3, count=1500))
    rng = random.Random(4)
    size = tokenizer.get_vocab_size()
    assert_same_text(tmp_path, tokenizer, [[rng.randrange(size) for _ in range(10)] for _ in range(500)])


@pytest.mark.parametrize("ignore_merges", [True, False])
def test_ignore_merges_takes_whole_words_from_the_vocabulary(ignore_merges, tmp_path):
    spec = train("llama3", drop_merges=0.3)
    spec["model"]["ignore_merges"] = ignore_merges
    tokenizer = save(spec, tmp_path)
    assert_same_ids(tmp_path, tokenizer, random_texts(seed=5, count=1500))


@pytest.mark.parametrize("fuse", [True, False])
def test_bytes_outside_the_vocabulary_become_the_unknown_token(fuse, tmp_path):
    spec = train("gpt2", alphabet=False)
    spec["model"].update(unk_token="<|end|>", fuse_unk=fuse)
    assert_same_ids(tmp_path, save(spec, tmp_path), random_texts(seed=6, count=1000))


def test_both_forms_of_merges_read_the_same(tmp_path):
    spec = train("qwen2")
    texts = random_texts(seed=7, count=200)
    save(spec, tmp_path / "lists")
    spec["model"]["merges"] = [f"{a} {b}" for a, b in spec["model"]["merges"]]
    save(spec, tmp_path / "strings")
    assert encode(tmp_path / "lists", texts) == encode(tmp_path / "strings", texts)


def test_words_of_any_length_merge_alike(tmp_path):
    tokenizer = save(train("llama3"), tmp_path)
    rng = random.Random(8)
    texts = ["".join(rng.choices("anthe", k=n)) for n in (1, 100, 127, 128, 129, 130, 300, 5000)]
    texts += ["a" * 100_000, " " * 50_000 + "x", "今天" * 20_000, "\n \t" * 10_000, "e\u0301" * 5000]
    assert_same_ids(tmp_path, tokenizer, texts)


@pytest.mark.slow
def test_every_character_class_is_that_of_tokenizers(tmp_path):
    """Each code point between a letter, a digit, a space and itself, under every pattern."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    points = [c for c in points if c < 0x3400 or 0xA000 <= c < 0xAC00 or 0xD7A0 <= c < 0x20010 or c % 97 == 0]
    texts = [
        "".join(f"a{chr(c)}b1{chr(c)}2 {chr(c)} '{chr(c)}" for c in points[i : i + 50])
        for i in range(0, len(points), 50)
    ]
    for kind in ("smollm2", "qwen2"):
        tokenizer = save(train(kind), tmp_path / kind)
        assert_same_ids(tmp_path / kind, tokenizer, texts)


@pytest.mark.parametrize("seed", range(6))
def test_added_tokens_with_random_flags_agree(seed, tmp_path):
    rng = random.Random(seed)
    spec = train(rng.choice(list(PRE_TOKENIZERS)))
    vocab = spec["model"]["vocab"]
    letters = ["a", "b", " ", "\n", "é", "e\u0301", "<", "W", "\u3000", "aa"]
    contents = {"".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(8)} - vocab.keys()
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    spec["added_tokens"] = spec["added_tokens"][:2] + [
        {"id": len(vocab) + i, "content": c, **{flag: rng.random() < 0.4 for flag in flags}}
        for i, c in enumerate(sorted(contents))
    ]
    tokenizer = save(spec, tmp_path)
    parts = [*letters, "  ", ".", *contents]
    texts = ["".join(rng.choices(parts, k=rng.randint(1, 25))) for _ in range(500)]
    for text, ids in zip(texts, encode(tmp_path, texts), strict=True):
        try:
            expected = tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as panic:  # `tokenizers` panics where two tokens claim the same white space
            assert "bad split" in str(panic)
            continue
        assert ids == expected, repr(text)


def test_single_words_end_at_the_same_characters(tmp_path):
    tokenizer = save(train("gpt2"), tmp_path)
    points = [c for c in range(0x20000) if not 0xD800 <= c < 0xE000 and (c < 0x3400 or c >= 0xA000)]
    texts = ["".join(f"{chr(c)}WORD. " for c in points[i : i + 300]) for i in range(0, len(points), 300)]
    assert_same_ids(tmp_path, tokenizer, texts)


def test_special_tokens_of_the_post_processor_are_added_on_request(tmp_path):
    spec = train("llama3")
    start = Tokenizer.from_str(json.dumps(spec)).token_to_id("<|start|>")
    special = {"<|start|>": {"id": "<|start|>", "ids": [start], "tokens": ["<|start|>"]}}
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    spec["post_processor"] = {"type": "Sequence", "processors": [byte_level, template]}
    tokenizer = save(spec, tmp_path)
    texts = random_texts(seed=9, count=50)
    assert_same_ids(tmp_path, tokenizer, texts)
    for text, ids in zip(texts, encode(tmp_path, texts, "--add-special-tokens"), strict=True):
        assert ids == tokenizer.encode(text).ids == [start, *tokenizer.encode(text, add_special_tokens=False).ids]


def test_splits_may_follow_each_other(tmp_path):
    spec = train("gpt2")
    splits = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.Split(Regex("[一-龥぀-ヿ]+"), "isolated"),
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True),
        ]
    )
    spec["pre_tokenizer"] = json.loads(splits.__getstate__())
    assert_same_ids(tmp_path, save(spec, tmp_path), random_texts(seed=10, count=1000))
