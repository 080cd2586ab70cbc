"""`augur sft` against transformers and torch's AdamW, and what it survives."""

import json
import re
import shutil
import signal
import subprocess
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from conftest import PROGRAM, run_augur, truth_file
from train_runs import make_policy, read_metrics, small_config, without_times

STEPS = 8
ROWS = [("3 1 2", "1 2 3"), ("9 8", "8 9"), ("5 4 7 6", "4 5 6 7")]
EOS = 269  # eos_token of the tokenizer; generation ends at any of END_TOKENS too
CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


def write_sft(tmp_path, policy, name="run", rows=ROWS, data="", **changes):
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in rows))
    settings = {"steps": STEPS, "batch": 3, "lr": 0.01, "eps": 1e-3, "weight_decay": 0.01} | changes
    lines = [
        f"run: {{dir: {tmp_path / name}, threads: 1}}",
        f"model: {{path: {policy}, precision: fp32}}",
        f"data: {{train: [{file}], shuffle: false{data}}}",
        "checkpoint: {every: 2}",
        "log: {console: false}",
        "sft:",
        *(f"  {key}: {value}" for key, value in settings.items()),
    ]
    config = tmp_path / f"{name}.yaml"
    config.write_text("\n".join(lines) + "\n")
    return config


def tokens_of(policy, text):
    return Tokenizer.from_file(str(policy / "tokenizer.json")).encode(text, add_special_tokens=False).ids


def test_losses_and_weights_are_those_of_transformers_and_adamw(tmp_path, policy):
    run_augur("sft", write_sft(tmp_path, policy))
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3, weight_decay=0.01)
    examples = [(tokens_of(policy, p), tokens_of(policy, a) + [EOS]) for p, a in ROWS]
    for line in read_metrics(tmp_path / "run"):
        terms = []
        for prompt, answer in examples:
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            terms.append(torch.nn.functional.cross_entropy(logits, torch.tensor(answer), reduction="none"))
        loss = torch.cat(terms).mean()
        assert line["data"]["train/loss"] == pytest.approx(loss.item(), rel=2e-4)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    saved = load_file(tmp_path / "run" / "model" / "model.safetensors")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(saved[name].double(), parameter.detach(), rtol=0, atol=2e-4, msg=name)


def test_stopped_or_killed_and_resumed_it_is_the_same_run(tmp_path, policy):
    whole = write_sft(tmp_path, policy, "whole", steps=60)
    run_augur("sft", whole)
    config = write_sft(tmp_path, policy, "cut", steps=60)
    for stop in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([PROGRAM, "sft", config], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not list((tmp_path / "cut" / "checkpoints").glob("global_step_*")):
            time.sleep(0.002)
        process.send_signal(stop)
        out, err = process.communicate(timeout=60)
        if stop == signal.SIGTERM and "stopped" in out:
            assert process.returncode == 0, err
            assert re.search(r"stopped by SIGTERM after step \d+ of 60; saved", out)
    run_augur("sft", config)
    assert without_times(read_metrics(tmp_path / "cut")) == without_times(read_metrics(tmp_path / "whole"))
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_steps_take_the_examples_in_turn(tmp_path, policy):
    run_augur("sft", write_sft(tmp_path, policy, steps=6, batch=1, lr=0, weight_decay=0))
    losses = [line["data"]["train/loss"] for line in read_metrics(tmp_path / "run")]
    assert losses[:3] == losses[3:] and len(set(losses)) == len(ROWS) == 3


def test_the_count_of_bad_updates_goes_on_after_a_resume(tmp_path, policy):
    """The first update leaves weights with which no later one is finite."""
    changes = dict(lr=1e30, max_bad_updates=2)
    run_augur("sft", write_sft(tmp_path, policy, steps=2, **changes))
    done = run_augur("sft", write_sft(tmp_path, policy, steps=5, **changes), check=False)
    assert done.returncode == 2 and "step 3: 2 updates in a row" in done.stderr


def test_the_count_of_bad_updates_begins_anew_after_a_good_one(tmp_path, policy):
    """Every other example holds a token after which activations overflow: the last width is 0 for all others, and a
    norm makes much of it."""
    model, width = tmp_path / "model", 31
    shutil.copytree(policy, model)
    tensors = load_file(model / "model.safetensors")
    [bad] = tokens_of(model, "9")
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor[width] = 0
    tensors["model.embed_tokens.weight"][:, width] = 0
    tensors["model.embed_tokens.weight"][bad, width] = 1
    tensors["model.layers.0.post_attention_layernorm.weight"][width] = 1e25
    save_file(tensors, model / "model.safetensors")
    changes = dict(rows=[("3 1 2", "1"), ("3 9 2", "1")], steps=6, batch=1, lr=1e-36, weight_decay=0)
    run_augur("sft", write_sft(tmp_path, model, max_bad_updates=2, **changes))
    skipped = [line["data"]["train/skipped_updates"] for line in read_metrics(tmp_path / "run")]
    assert skipped == [0, 1, 0, 1, 0, 1]


def test_a_resumed_run_may_not_change_what_it_computes(tmp_path, policy):
    run_augur("sft", write_sft(tmp_path, policy))
    changed = run_augur("sft", write_sft(tmp_path, policy, lr=0.02), check=False)
    assert changed.returncode == 2 and "sft.lr: 0.01 -> 0.02" in changed.stderr


def first_loss_and_gradient(policy, examples):
    """Of transformers, in float64: the mean over all target tokens, and the global norm."""
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64, attn_implementation="eager")
    terms = []
    for prompt, answer in examples:
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        terms.append(torch.nn.functional.cross_entropy(logits, torch.tensor(answer), reduction="none"))
    loss = torch.cat(terms).mean()
    loss.backward()
    return loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item(), model


def check_first_step(run, policy, examples):
    loss, norm, model = first_loss_and_gradient(policy, examples)
    [line] = read_metrics(run)
    assert line["data"]["train/loss"] == pytest.approx(loss, rel=1e-5)
    assert line["data"]["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    # The first update of AdamW without decay and with a huge eps is lr * gradient / eps.
    before = {name: value.double() for name, value in load_file(policy / "model.safetensors").items()}
    after = load_file(run / "model" / "model.safetensors")
    for name, parameter in model.named_parameters():
        step = (before[name] - after[name].double()) * 1e3
        torch.testing.assert_close(step, parameter.grad, rtol=0, atol=3e-3 * norm, msg=name)


PLAIN_UPDATE = dict(steps=1, batch=2, lr=1e3, eps=1e6, weight_decay=0, grad_clip=0)


def test_the_whole_answer_is_the_target(tmp_path, policy):
    """A GSM8K solution, not the number it ends with."""
    solutions = [("7 x 6?", "7 x 6 is\n42.\n#### 42"), ("1,000 + 1?", "That is 1,001\n#### 1,001")]
    run_augur("sft", write_sft(tmp_path, policy, rows=solutions, **PLAIN_UPDATE))
    examples = [(tokens_of(policy, p), tokens_of(policy, a) + [EOS]) for p, a in solutions]
    check_first_step(tmp_path / "run", policy, examples)


def with_template(policy, directory, replaced=None, eos_ids=(269, 271), eos_token="<|endoftext|>", template=CHATML):
    """The model with a chat template, several end ids of which the lowest is not the format's, and tokens renamed."""
    shutil.copytree(policy, directory)
    text = (directory / "tokenizer.json").read_text()
    for old, new in (replaced or {}).items():
        text = text.replace(json.dumps(old), json.dumps(new))
    (directory / "tokenizer.json").write_text(text)
    fields = json.loads((directory / "tokenizer_config.json").read_text()) | {"eos_token": eos_token}
    if template:
        fields["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(fields))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": list(eos_ids)}))
    return directory


CONVERSATIONS = [
    ([{"role": "user", "content": "3 1 2"}], "1 2 3"),
    ([{"role": "system", "content": "sort"}, {"role": "user", "content": "9 8"}], "8 9\n"),
]


def test_a_conversation_with_several_end_ids_is_that_of_transformers(tmp_path, policy):
    model = with_template(policy, tmp_path / "chat")
    run_augur("sft", write_sft(tmp_path, model, rows=CONVERSATIONS, **PLAIN_UPDATE))
    tokenizer = AutoTokenizer.from_pretrained(model)
    examples = []
    for messages, answer in CONVERSATIONS:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer}], tokenize=False)
        assert whole == prompt + answer + "<|im_end|>\n"
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        target = tokenizer(answer + "<|im_end|>", add_special_tokens=False).input_ids
        assert target[-1] == 271
        examples.append((ids, target))
    check_first_step(tmp_path / "run", model, examples)


def test_conversations_in_the_layouts_of_trl_are_the_same_examples(tmp_path, policy):
    """`messages` whose last is learned, and `completion` as a message or as text."""
    model = with_template(policy, tmp_path / "chat")
    answers = [[{"role": "assistant", "content": answer}] for _, answer in CONVERSATIONS]
    layouts = {
        "run": [{"prompt": messages, "answer": answer} for messages, answer in CONVERSATIONS],
        "messages": [{"messages": m + a} for (m, _), a in zip(CONVERSATIONS, answers, strict=True)],
        "completion": [{"prompt": m, "completion": a} for (m, _), a in zip(CONVERSATIONS, answers, strict=True)],
        "text": [{"prompt": messages, "completion": answer} for messages, answer in CONVERSATIONS],
    }
    metrics = {}
    for name, rows in layouts.items():
        config = write_sft(tmp_path, model, name, **PLAIN_UPDATE)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run_augur("sft", config)
        metrics[name] = without_times(read_metrics(tmp_path / name))
    assert all(metrics[name] == metrics["run"] for name in layouts)
    config = write_sft(tmp_path, model, "asks", **PLAIN_UPDATE)
    (tmp_path / "asks.jsonl").write_text(json.dumps({"messages": CONVERSATIONS[0][0]}) + "\n")
    done = run_augur("sft", config, check=False)
    assert done.returncode == 2 and "asks.jsonl:1: no answer" in done.stderr


def test_reasoning_apart_from_an_answer_is_learned_as_transformers_writes_it(tmp_path, policy):
    template = truth_file("trl/chat_templates/qwen3.jinja").read_text()
    model = with_template(policy, tmp_path / "chat", template=template)
    asked = [{"role": "user", "content": "3 1 2"}]
    reply = {"role": "assistant", "content": "\n\n1 2 3", "reasoning_content": "\nsort\n"}
    learned = "<think>\nsort\n</think>\n\n1 2 3"
    tokenizer = AutoTokenizer.from_pretrained(model)
    opening = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    assert tokenizer.apply_chat_template([*asked, reply], tokenize=False) == f"{opening}{learned}<|im_end|>\n"

    def metrics_of(name: str, row: dict, *changes: str) -> list[dict]:
        config = write_sft(tmp_path, model, name, **PLAIN_UPDATE)
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        run_augur("sft", config, *changes)
        return without_times(read_metrics(tmp_path / name))

    expected = metrics_of("answer", {"prompt": asked, "answer": learned})
    assert metrics_of("messages", {"messages": [*asked, reply]}) == expected
    assert metrics_of("completion", {"prompt": asked, "completion": [reply]}) == expected
    plain = {"role": "assistant", "content": learned, "reasoning_content": None}
    assert metrics_of("none", {"messages": [*asked, plain]}) == expected
    off = "data.thinking=off"
    silent = metrics_of("silent", {"prompt": asked, "answer": reply["content"]}, off)
    assert metrics_of("off", {"messages": [*asked, reply]}, off) == silent


def test_reasoning_that_a_format_has_no_place_for_is_refused(tmp_path, policy):
    model = with_template(policy, tmp_path / "chat")
    asked = [{"role": "user", "content": "3 1 2"}]
    config = write_sft(tmp_path, model, "run", **PLAIN_UPDATE)
    row = {"messages": [*asked, {"role": "assistant", "content": "1", "reasoning_content": "sort"}]}
    (tmp_path / "run.jsonl").write_text(json.dumps(row) + "\n")
    done = run_augur("sft", config, check=False)
    assert done.returncode == 2 and "run.jsonl:1: the format chatml has no place for reasoning_content" in done.stderr


@pytest.mark.parametrize(
    ("case", "end"),
    [
        (dict(template=""), 269),  # plain text: eos_token, wherever it stands in the list
        (dict(template="", eos_ids=(3, 269, 271), eos_token="<|im_end|>"), 271),
        (dict(template="", eos_ids=(271, 3), eos_token=None), 271),  # no eos_token: the first that is listed
    ],
)
def test_the_end_of_plain_text_is_the_eos_token(tmp_path, policy, case, end):
    model = with_template(policy, tmp_path / "plain", **case)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    run_augur("sft", write_sft(tmp_path, model, rows=ROWS[:2], **PLAIN_UPDATE))
    examples = [(tokens_of(model, p), tokens_of(model, a) + [end]) for p, a in ROWS[:2]]
    assert read_metrics(tmp_path / "run")[0]["data"]["train/loss"] == pytest.approx(
        first_loss_and_gradient(model, examples)[0], rel=1e-5
    )


def test_the_end_of_a_llama3_turn_is_its_own(tmp_path, policy):
    """eot_id, not end_of_text, which the list names first."""
    renamed = {"<|endoftext|>": "<|end_of_text|>", "<|im_start|>": "<|start_header_id|>", "<|im_end|>": "<|eot_id|>"}
    model = with_template(policy, tmp_path / "llama", renamed, template="", eos_token="<|end_of_text|>")
    config = write_sft(tmp_path, model, rows=CONVERSATIONS[:1], data=", chat_format: llama3", **PLAIN_UPDATE)
    run_augur("sft", config)
    prompt = (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n3 1 2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    example = (tokens_of(model, prompt), tokens_of(model, "1 2 3") + [271])
    check_first_step(tmp_path / "run", model, [example])


def test_examples_longer_than_the_context_are_named_or_counted(tmp_path, policy):
    rows = [*ROWS, ("1 2 3", "4 5 " * 200)]
    refused = run_augur("sft", write_sft(tmp_path, policy, rows=rows), check=False)
    assert refused.returncode == 2 and "run.jsonl:4: prompt and answer have" in refused.stderr
    config = write_sft(tmp_path, policy, rows=rows, steps=1, data=", overlong: drop")
    assert "1 examples left out" in run_augur("sft", config).stderr
    # The last token is read by nothing, so that one more than the context fits.
    for more, fits in ((0, True), (1, False)):
        rows = [("1", " ".join(["2"] * (127 + more)))]
        assert len(tokens_of(policy, rows[0][0]) + tokens_of(policy, rows[0][1])) + 1 == 129 + more
        done = run_augur("sft", write_sft(tmp_path, policy, f"more{more}", rows=rows, steps=1, batch=1), check=False)
        assert (done.returncode == 0) == fits, done.stderr


def test_examples_longer_than_the_context_lose_the_beginning_of_their_prompt(tmp_path, policy):
    prompt = " ".join(str(i) for i in range(140))
    changes = PLAIN_UPDATE | dict(batch=1, data=", overlong: truncate_left")
    config = write_sft(tmp_path, policy, rows=[(prompt, "1 2 3")], **changes)
    assert "1 examples cut at the left" in run_augur("sft", config).stderr
    answer = tokens_of(policy, "1 2 3") + [EOS]
    kept = tokens_of(policy, prompt)[len(answer) - 129 :]  # 128 are read
    check_first_step(tmp_path / "run", policy, [(kept, answer)])


def test_changed_data_is_refused(tmp_path, policy):
    config = write_sft(tmp_path, policy)
    run_augur("sft", config)
    (tmp_path / "run.jsonl").write_text((tmp_path / "run.jsonl").read_text().replace("9", "7"))
    refused = run_augur("sft", config, "sft.steps=9", check=False)
    assert refused.returncode == 2 and f"{tmp_path / 'run.jsonl'}: other content" in refused.stderr
    run_augur("sft", config, "sft.steps=1", "run.resume=never")
    assert (tmp_path / "run" / "checkpoints" / "abandoned-1" / "model").is_dir()


def test_the_run_of_another_command_is_named_and_left_alone(tmp_path, policy):
    run_augur("sft", write_sft(tmp_path, policy, steps=1))
    config = small_config(tmp_path, policy, train__steps=1)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and f"{tmp_path / 'run'}: holds a run of augur sft; set run.dir" in done.stderr
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    run_augur("train", config, "run.resume=never")
    done = run_augur("sft", write_sft(tmp_path, policy, steps=1), check=False)
    assert done.returncode == 2 and "holds a run of augur train" in done.stderr


def test_the_ground_truth_of_a_verifier_is_no_answer_unless_it_is_named(tmp_path, policy):
    config = write_sft(tmp_path, policy, steps=1)
    row = {"prompt": "3 1 2", "reward_model": {"ground_truth": "1 2 3"}}
    (tmp_path / "run.jsonl").write_text(json.dumps(row) + "\n")
    done = run_augur("sft", config, check=False)
    assert done.returncode == 2 and "no answer to learn; name the column" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    run_augur("sft", config, "data.answer_key=reward_model.ground_truth")
    named = read_metrics(tmp_path / "run")[-1]["data"]["train/loss"]
    # Where a row has both, its solution is the whole answer.
    (tmp_path / "run.jsonl").write_text(json.dumps({"prompt": "3 1 2", "answer": "3", "solution": "1 2 3"}) + "\n")
    run_augur("sft", config, f"run.dir={tmp_path / 'both'}")
    assert read_metrics(tmp_path / "both")[-1]["data"]["train/loss"] == named
