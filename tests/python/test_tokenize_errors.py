"""What `augur tokenize` says about damaged or unsupported tokenizers and about bad lines."""

import json

import pytest

from conftest import run_augur
from tokenizer_zoo import train


def message(directory, *flags, stdin='{"text":"a"}\n'):
    """The one line on stderr; the exit code must be 2."""
    done = run_augur("tokenize", directory, *flags, stdin=stdin, check=False)
    stderr = done.stderr if isinstance(done.stderr, str) else done.stderr.decode()
    assert done.returncode == 2, stderr
    assert stderr.startswith("augur: ") and stderr.count("\n") == 1
    return stderr


@pytest.fixture(scope="module")
def base():
    return train("qwen2")


@pytest.fixture
def spec(base):
    return json.loads(json.dumps(base))


@pytest.fixture
def complaint(tmp_path):
    def write_and_run(spec, *flags, **kwargs):
        content = spec if isinstance(spec, bytes) else json.dumps(spec).encode()
        (tmp_path / "tokenizer.json").write_bytes(content)
        return message(tmp_path, *flags, **kwargs)

    return write_and_run


def test_a_merge_that_names_an_absent_token_is_named(spec, complaint):
    left, right = spec["model"]["merges"][5]
    del spec["model"]["vocab"][left + right]
    assert f'merge 5 ("{left}" + "{right}") names the token "{left + right}"' in complaint(spec)


def test_a_merge_that_is_not_a_pair_is_named(spec, complaint):
    spec["model"]["merges"][3] = "a b c"
    assert 'merge 3 is "a b c", not two tokens' in complaint(spec)


def test_two_tokens_with_one_id_are_named(spec, complaint):
    spec["model"]["vocab"]["zzzz"] = 7
    assert '"zzzz"' in complaint(spec) and "same id 7" in complaint(spec)


@pytest.mark.parametrize("bad", [-1, 1 << 40, 1.5, "7", None])
def test_an_impossible_id_is_named(spec, complaint, bad):
    spec["model"]["vocab"]["zzzz"] = bad
    assert f'token "zzzz" has the id {json.dumps(bad)}' in complaint(spec)


def test_added_tokens_must_have_the_id_tokenizers_gives_them(spec, complaint):
    spec["added_tokens"][-1]["id"] += 5
    assert "the next free id is" in complaint(spec)
    spec["added_tokens"][-1]["id"] = spec["added_tokens"][-2]["id"]
    assert "which another one has too" in complaint(spec)
    spec["added_tokens"][0]["id"] = 300
    assert "the vocabulary gives it 0" in complaint(spec)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["model", "type"], "WordPiece", 'a model of type "WordPiece" is not supported'),
        (["model", "type"], "Unigram", 'a model of type "Unigram" is not supported'),
        (["model", "byte_fallback"], True, '"byte_fallback" is not supported'),
        (["model", "dropout"], 0.1, '"dropout" is not supported'),
        (["model", "end_of_word_suffix"], "</w>", '"end_of_word_suffix" is not supported'),
        (["model", "unk_token"], "<nope>", 'the unknown token "<nope>" is not in the vocabulary'),
        (["model", "vocab"], [], '"vocab" is not an object'),
        (["model", "merges"], {}, '"merges" is not a list'),
        (["model"], None, "expected a JSON object"),
        (["normalizer"], {"type": "Lowercase"}, "normalizer Lowercase is not supported"),
        (["normalizer"], {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}, "normalizer NFKC"),
        (["pre_tokenizer"], {"type": "Metaspace"}, "pre_tokenizer Metaspace is not supported"),
        (["pre_tokenizer"], {"type": "Digits", "individual_digits": True}, "has no ByteLevel"),
        (["pre_tokenizer"], None, "there is no pre_tokenizer"),
        (["pre_tokenizer", "pretokenizers", 0, "behavior"], "Removed", "behavior Removed is not supported"),
        (["pre_tokenizer", "pretokenizers", 0, "pattern"], {"Regex": "a(?<n>b)"}, 'uses "(?<"'),
        (["pre_tokenizer", "pretokenizers", 0, "pattern"], {"Regex": "a{2}+"}, 'uses "}+"'),
        (["pre_tokenizer", "pretokenizers", 0, "pattern"], {"Regex": "(a"}, "not a regular expression"),
        (["post_processor"], {"type": "BertProcessing"}, "post_processor BertProcessing is not supported"),
        (["decoder"], {"type": "Metaspace"}, "decoder Metaspace is not supported"),
        (["decoder"], None, "the decoder is not one ByteLevel"),
        (["added_tokens"], {}, '"added_tokens" is not a list'),
        (["added_tokens", 0, "content"], "", "is empty"),
        (["added_tokens", 0, "lstrip"], 1, '"lstrip" is not true or false'),
    ],
)
def test_what_is_not_supported_is_named(spec, complaint, path, value, said):
    target = spec
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    text = complaint(spec)
    assert said in text and "tokenizer.json" in text


def test_invalid_utf8_in_the_file_is_an_error(spec, complaint):
    content = json.dumps(spec).encode().replace(b'"<think>"', b'"<th\xffnk>"')
    assert "not valid JSON" in complaint(content) and "UTF-8" in complaint(content)


def test_a_cut_file_is_an_error(spec, complaint):
    assert "not valid JSON" in complaint(json.dumps(spec).encode()[:1000])


def test_deep_nesting_is_refused(complaint):
    assert "nested deeper" in complaint(b'{"model":' + b"[" * 100_000)


def test_a_directory_without_tokenizer_says_so(tmp_path):
    assert "has no tokenizer.json" in message(tmp_path)
    assert "not a directory" in message(tmp_path / "absent")


def test_bad_lines_are_named_by_number(spec, complaint):
    assert "line 2: not valid JSON" in complaint(spec, stdin='{"text":"a"}\n{"text":\n')
    assert 'line 3: the key "text" is missing' in complaint(spec, stdin='{"text":"a"}\n\n{"ids":[1]}\n')
    assert 'line 1: "text" is a number, not a string' in complaint(spec, stdin='{"text":7}\n')
    assert "line 1: " in complaint(spec, stdin=b'{"text":"a\xff"}\n')
    assert "line 1: " in complaint(spec, stdin='{"text":"\\ud800"}\n')


@pytest.mark.parametrize("bad", [100_000, 1 << 31, -1, 1 << 70])
def test_an_id_out_of_range_is_named_when_decoding(spec, complaint, bad):
    text = complaint(spec, "--decode", stdin=f'{{"ids":[1]}}\n{{"ids":[1,{bad}]}}\n')
    assert "line 2: " in text and ("no token has the id" in text or "no token id" in text)


def test_unknown_flags_and_formats_suggest_the_nearest(spec, complaint):
    assert "did you mean '--decode'" in complaint(spec, "--decod")
    assert "did you mean 'qwen3'" in complaint(spec, "--chat-format", "qwen33")


@pytest.mark.parametrize("flags", [(), ("--decode",)])
def test_a_tokenizer_larger_than_the_embedding_is_refused(spec, complaint, tmp_path, flags):
    largest = max([*spec["model"]["vocab"].values(), *(token["id"] for token in spec["added_tokens"])])
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": largest}))
    text = complaint(spec, *flags)
    assert f"ids up to {largest}" in text and f"the embedding has {largest} rows" in text


def test_a_tokenizer_that_just_fits_the_embedding_is_read(spec, tmp_path):
    largest = max([*spec["model"]["vocab"].values(), *(token["id"] for token in spec["added_tokens"])])
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": largest + 1}))
    assert run_augur("tokenize", tmp_path, stdin='{"text":"a"}\n').stdout.startswith('{"ids":')
