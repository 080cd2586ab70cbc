"""Conversations render as transformers' apply_chat_template renders them."""

import datetime
import json
import random

import pytest
from transformers import PreTrainedTokenizerFast

from conftest import run_augur, run_augur_lines, truth_file
from published import tokenizer_directory
from tokenizer_zoo import random_text, save, train

_TURN = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
_OPENING = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CHATML = "{% for message in messages %}" + _TURN + "{% endfor %}" + _OPENING
DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + _SYSTEM + "<|im_end|>\n' }}"
    "{% endif %}" + _TURN + "{% endfor %}" + _OPENING
)
OWN = {
    "chatml": CHATML,
    "smollm2": DEFAULT_SYSTEM,
    "qwen2": DEFAULT_SYSTEM.replace(_SYSTEM, "You are a helpful assistant."),
}
# Published templates that the package trl carries, by the name of Augur's format.
OF_TRL = {
    "qwen2.5": "qwen2_5",
    "qwen3": "qwen3",
    "qwen3-instruct": "qwen3_instruct_2507",
    "llama3": "llama3",
    "llama3.1": "llama3_1",
    "llama3.2": "llama3_2",
}


def published_template(name: str) -> str:
    return truth_file(f"trl/chat_templates/{OF_TRL[name]}.jinja").read_text()


def template(name: str) -> str:
    return OWN[name] if name in OWN else published_template(name)


@pytest.fixture(scope="module")
def spec():
    return train("qwen2")


@pytest.fixture
def make_model(spec, tmp_path):
    """Writes a model directory with a chat template; returns it and transformers' tokenizer of it."""

    def make(jinja: str, own_file: bool = False):
        save(spec, tmp_path)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|start|>",
            "eos_token": "<|end|>",
        }
        if own_file:
            (tmp_path / "chat_template.jinja").write_text(jinja)
        else:
            config["chat_template"] = jinja
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path, PreTrainedTokenizerFast.from_pretrained(tmp_path)

    return make


def random_conversation(rng: random.Random) -> list[dict]:
    def words():
        return rng.choice(["", "\n", " ", "\x1f\u3000"]) + random_text(rng) + rng.choice(["", "\n\n", " \t"])

    def reply():
        thoughts = rng.choice(
            ["<think>\n{}\n</think>\n\n{}", "{}</think>{}", "<think>{}{}", "{}{}", "{}</think></think>\n{}"]
        )
        return thoughts.format(words(), words())

    messages = [{"role": "system", "content": words()}] if rng.random() < 0.4 else []
    roles = ["user", "assistant"] * 3 if rng.random() < 0.7 else rng.choices(["user", "assistant", "system"], k=5)
    for role in roles[: rng.randint(1, 5)]:
        messages.append({"role": role, "content": reply() if role == "assistant" else words()})
    return messages


def requests(rng: random.Random, count: int, thinking: bool) -> list[dict]:
    lines = []
    for _ in range(count):
        line = {"messages": random_conversation(rng), "add_generation_prompt": rng.random() < 0.5}
        if thinking and rng.random() < 0.7:
            line["enable_thinking"] = rng.random() < 0.5
            for message in line["messages"]:
                if message["role"] == "assistant" and rng.random() < 0.3:
                    message["reasoning_content"] = random_text(rng)
        lines.append(line)
    return lines


def expected(tokenizer, line: dict) -> str:
    options = {k: v for k, v in line.items() if k != "messages"}
    return tokenizer.apply_chat_template(line["messages"], tokenize=False, **options)


@pytest.mark.parametrize("name", [*OWN, *OF_TRL])
def test_random_conversations_render_as_in_transformers(name, make_model):
    directory, tokenizer = make_model(template(name), own_file=name == "chatml")
    lines = requests(random.Random(11), 150, thinking=name == "qwen3")
    for line, answer in zip(lines, run_augur_lines("tokenize", directory, lines=lines), strict=True):
        assert answer["text"] == expected(tokenizer, line), line
        assert answer["ids"] == tokenizer.encode(answer["text"], add_special_tokens=False)


@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_templates_of_published_models_render_as_in_transformers(name, make_model):
    config = json.loads((tokenizer_directory(name) / "tokenizer_config.json").read_text())
    directory, tokenizer = make_model(config["chat_template"])
    lines = requests(random.Random(12), 150, thinking=name == "qwen3")
    for line, answer in zip(lines, run_augur_lines("tokenize", directory, lines=lines), strict=True):
        assert answer["text"] == expected(tokenizer, line), line


def test_tool_results_of_qwen_share_a_turn(make_model):
    directory, tokenizer = make_model(template("qwen3"))
    messages = [{"role": r, "content": r} for r in ("user", "assistant", "tool", "tool", "assistant", "tool")]
    line = {"messages": messages, "add_generation_prompt": True}
    assert run_augur_lines("tokenize", directory, lines=[line])[0]["text"] == expected(tokenizer, line)


def test_the_date_of_llama_can_be_set_and_defaults_to_the_template(make_model):
    directory, tokenizer = make_model(template("llama3.2"))
    line = {"messages": [{"role": "user", "content": "hi"}], "date_string": "01 Jan 2025"}
    assert run_augur_lines("tokenize", directory, lines=[line])[0]["text"] == expected(tokenizer, line)
    del line["date_string"]
    text = run_augur_lines("tokenize", directory, lines=[line])[0]["text"]
    assert datetime.datetime.now().strftime("Today Date: %d %b %Y") in text


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("message['role']", "message.role").replace("message['content']", 'message["content"]'),
        lambda t: (
            "{# a comment #}\n" + t.replace("{% if add", "\n    {%- if add").replace("%}{{'<", "%}\n    {{- '<") + "\n"
        ),
        lambda t: t.replace("\n'", "\\n'"),
    ],
)
def test_layout_does_not_hide_a_known_template(change, make_model):
    directory, tokenizer = make_model(change(CHATML))
    assert change(CHATML) != CHATML
    line = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}
    assert run_augur_lines("tokenize", directory, lines=[line])[0]["text"] == expected(tokenizer, line)


@pytest.mark.parametrize(
    "jinja",
    [
        CHATML.replace("'\n' + message['content']", "' ' + message['content']"),
        CHATML.replace("<|im_end|>", "<|eot|>"),
        CHATML + "!",
        "{{ bos_token }}",
        "{% for",
        "{{ '",
        "{#",
        "{",
    ],
)
def test_any_other_template_is_an_error_that_says_what_to_do(jinja, make_model):
    directory, _ = make_model(jinja)
    line = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
    done = run_augur("tokenize", directory, stdin=line, check=False)
    assert done.returncode == 2
    assert "chat template is not one Augur knows; choose the format it writes by name" in done.stderr
    assert run_augur("tokenize", directory, "--chat-format", "chatml", stdin=line).returncode == 0


def test_a_model_without_template_takes_raw_prompts(spec, tmp_path):
    save(spec, tmp_path)
    line = {"messages": [{"role": "user", "content": "hi <|end|>\n"}], "add_generation_prompt": True}
    assert run_augur_lines("tokenize", tmp_path, lines=[line])[0]["text"] == "hi <|end|>\n"
    two = json.dumps({"messages": [{"role": "user", "content": "a"}] * 2})
    assert "raw takes one user message" in run_augur("tokenize", tmp_path, stdin=two, check=False).stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"messages": []}, "the conversation has no messages"),
        ({"messages": [{"role": "critic", "content": "a"}]}, 'has no place for the role "critic"'),
        ({"messages": [{"role": "user"}]}, 'the key "content" is missing'),
        ({"messages": "hi"}, '"messages" is not a list'),
        (
            {"messages": [{"role": "user", "content": "a"}], "enable_thinking": False},
            "has no thinking switch",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": 1},
            "is not true or false",
        ),
    ],
)
def test_bad_conversations_are_errors_with_their_line(line, said, spec, tmp_path):
    save(spec, tmp_path)
    done = run_augur("tokenize", tmp_path, "--chat-format", "qwen2.5", stdin=json.dumps(line), check=False)
    assert done.returncode == 2 and "line 1: " in done.stderr and said in done.stderr
