"""augur generate: transformers' greedy tokens, the recorded support, seeds, stops, bad prompts, interruption."""

import json
import math
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tokenizer_zoo
from conftest import PROGRAM, ROOT, run_augur
from model_zoo import FAMILIES, VOCAB, as_lines, edit_config, log_probs, make_model, make_sequences
from published import smollm2_model

PROMPTS = make_sequences([1, 7, 30, 12], seed=3)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Random models by family, saved once."""
    made = {}

    def get(name: str):
        if name not in made:
            model = make_model(name)
            directory = tmp_path_factory.mktemp(name)
            model.save_pretrained(directory)
            made[name] = (model, directory)
        return made[name]

    return get


def generate(directory, *flags, prompts=PROMPTS, check=True):
    """The rollouts of token prompts, and the finished process."""
    done = run_augur("generate", directory, "--tokens-input", "-", *flags, stdin=as_lines(prompts), check=check)
    return [json.loads(line) for line in done.stdout.splitlines()], done


def greedy(model, prompt: list[int], count: int) -> list[int]:
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(models, family):
    model, directory = models(family)
    rollouts, _ = generate(directory, "--greedy", "--max-tokens", 24, "--ignore-eos", "--dtype", "fp32")
    assert [r["tokens"] for r in rollouts] == [greedy(model, p, 24) for p in PROMPTS]
    assert all(r["finish_reason"] == "length" for r in rollouts)


def test_log_probs_and_support_are_those_of_the_model_at_the_temperature(models):
    model, directory = models("qwen3")
    temperature, k = 0.7, 5
    flags = ["--max-tokens", 16, "--temperature", temperature, "--top-logprobs", k, "--samples", 3, "--ignore-eos"]
    rollouts, _ = generate(directory, *flags)
    assert [(r["prompt"], r["sample"]) for r in rollouts] == [(p, s) for p in range(4) for s in range(3)]
    for r in rollouts:
        assert r["prompt_tokens"] == PROMPTS[r["prompt"]]
        assert (r["temperature"], r["weight_version"]) == (temperature, 0)
        whole = torch.tensor([r["prompt_tokens"] + r["tokens"]])
        logits = model(whole).logits[0, len(r["prompt_tokens"]) - 1 : -1].float() / temperature
        truth = torch.log_softmax(logits, -1)
        for row, token, recorded in zip(truth, r["tokens"], r["logprobs"], strict=True):
            assert recorded == pytest.approx(row[token].item(), abs=1e-4)
        for row, token, ids, values in zip(truth, r["tokens"], r["support_ids"], r["support_logprobs"], strict=True):
            assert len(ids) == len(values) == k + 1 and ids[0] == token
            used = [i for i in ids if i >= 0]
            assert set(used) == {token, *row.topk(k).indices.tolist()}
            assert [v is None for v in values] == [i < 0 for i in ids]
            assert values[: len(used)] == pytest.approx([row[i].item() for i in used], abs=1e-4)
            assert values[1 : len(used)] == sorted(values[1 : len(used)], reverse=True)


def test_draws_follow_from_the_seed_alone(models):
    _, directory = models("qwen2")
    flags = ["--max-tokens", 20, "--samples", 2, "--ignore-eos"]
    tokens = [[r["tokens"] for r in generate(directory, *flags, "--seed", seed)[0]] for seed in (1, 1, 2)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert tokens[0][0] != tokens[0][1], "samples of one prompt differ"
    alone, _ = generate(directory, *flags, "--seed", 1, prompts=PROMPTS[:1])
    assert [r["tokens"] for r in alone] == tokens[0][:2], "others in the batch change nothing"
    one_by_one, _ = generate(directory, *flags, "--seed", 1, "--max-batch", 1)
    assert [r["tokens"] for r in one_by_one] == tokens[0]


def test_an_end_token_ends_a_response_and_is_its_last_token(models, tmp_path):
    model, _ = models("llama")
    full = greedy(model, PROMPTS[2], 24)
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [full[5], VOCAB - 1]}))
    rollouts, _ = generate(tmp_path, "--greedy", "--max-tokens", 24, prompts=PROMPTS[2:3])
    first = full.index(full[5])
    assert rollouts[0]["tokens"] == full[: first + 1] and rollouts[0]["finish_reason"] == "eos"
    ignored, _ = generate(tmp_path, "--greedy", "--max-tokens", 24, "--ignore-eos", prompts=PROMPTS[2:3])
    assert ignored[0]["tokens"] == full


def test_a_response_ends_with_the_context(models, tmp_path):
    model, _ = models("llama")
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, max_position_embeddings=16)
    rollouts, _ = generate(tmp_path, "--greedy", "--max-tokens", 24, "--ignore-eos", prompts=[PROMPTS[3]])
    assert len(rollouts[0]["tokens"]) == 4 and rollouts[0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"tokens":[]}', "empty"),
        (json.dumps({"tokens": [3] * 512}), "context of 512"),
        ('{"tokens":[1,97]}', "token id 97 is outside"),
        ('{"tokens":[-1]}', "token id -1 is outside"),
        ('{"tokens":[99999999999]}', "no token id"),
        ('{"tokens":["a"]}', "no token id"),
        ('{"text":"a"}', '"tokens" is missing'),
        ("{", "not valid JSON"),
    ],
)
def test_a_bad_prompt_is_named_and_the_others_are_kept(models, tmp_path, line, message):
    _, directory = models("llama")
    good, _ = generate(directory, "--max-tokens", 6, "--ignore-eos", prompts=PROMPTS[:1])
    output = tmp_path / "out.jsonl"
    flags = ["--max-tokens", 6, "--ignore-eos", "--output", output]
    stdin = as_lines(PROMPTS[:1]) + "\n" + line + "\n" + as_lines(PROMPTS[1:2])
    done = run_augur("generate", directory, "--tokens-input", "-", *flags, stdin=stdin, check=False)
    assert done.returncode == 2
    assert "line 3: " in done.stderr and message in done.stderr and done.stderr.count("\n") == 1
    rollouts = [json.loads(text) for text in output.read_text().splitlines()]
    assert [r["finish_reason"] for r in rollouts] == ["length", "failed", "length"]
    assert rollouts[0]["tokens"] == good[0]["tokens"] and rollouts[1]["error"] in done.stderr


def test_logits_that_overflow_name_the_prompt(tmp_path):
    config = LlamaConfig(**FAMILIES["llama"][2])
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(1e38)
        model.model.norm.weight.mul_(1e6)
    model.save_pretrained(tmp_path)
    rollouts, done = generate(tmp_path, "--max-tokens", 4, prompts=PROMPTS[:1], check=False)
    assert done.returncode == 2 and rollouts[0]["finish_reason"] == "failed"
    assert done.stderr.startswith("augur: line 1: ") and "not finite" in done.stderr
    for dtype, remedy in (("bf16", "try --dtype fp32"), ("fp32", "take another checkpoint")):
        done = run_augur("score", tmp_path, "--dtype", dtype, stdin='{"tokens":[1,2,3]}\n', check=False)
        assert done.returncode == 2 and "not finite" in done.stderr and remedy in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--chat-format", "chatml"], "--chat-format: does nothing to a prompt that is plain text; add --chat"),
        (["--thinking", "true"], "--thinking: does nothing to a prompt that is plain text; add --chat"),
        (["--greedy", "--temperature", 0.7], "--temperature excludes --greedy"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(flags, message):
    done = run_augur("generate", ROOT / "models" / "tiny", "--prompt", "1 2 =", *flags, check=False)
    assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--top-logprobs", 97], "--top-logprobs: top-97 of a vocabulary of 97"),
        (["--top-logprobs", -1], "--top-logprobs"),
        (["--max-tokens", 0], "max_tokens"),
        (["--samples", 0], "samples"),
        (["--temperature", -1], "temperature"),
        (["--temperature", "1e-40"], "give 0 (greedy), or 1e-30"),
        (["--samples", 10**11], "too many"),
        (["--seed", -1], "--seed"),
        (["--seed", 2**64], "too large"),
        (["--top-p", 0], "top_p"),
        (["--precision", "fp16"], "did you mean"),
        (["--device", "tpu"], "--device"),
        (["--stats", "xml"], "--stats json"),
        (["--prompt", "x"], "--tokens-input"),
        (["--max-token", 3], "did you mean '--max-tokens'"),
    ],
)
def test_flags_out_of_range_are_one_line(models, flags, message):
    _, directory = models("llama")
    _, done = generate(directory, *flags, check=False)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_what_is_read_is_not_written_to(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "1 2 =", "answer": "1 2"}\n')
    (tmp_path / "link.jsonl").symlink_to(data)
    model = ROOT / "models" / "tiny"
    reward, log = tmp_path / "score.py", tmp_path / "run" / "metrics.jsonl"
    reward.write_text("def score(prompt, completion, **row): return 0.5")
    log.parent.mkdir()
    log.write_text('{"step": 1, "data": {}}\n')
    for command in (
        ["generate", model, "--data", data, "--output", tmp_path / "link.jsonl"],
        ["eval", model, "--data", tmp_path / "link.jsonl", "--output", data],
        ["eval", model, "--data", data, "--responses", data],
        ["eval", model, "--data", data, "--reward", f"{reward}:score", "--responses", reward],
        ["report", log.parent, "--output", log],
    ):
        done = run_augur(*command, check=False)
        assert done.returncode == 2 and "which this command reads; name another file" in done.stderr
    assert data.read_text().startswith('{"prompt"') and reward.read_text().startswith("def")
    assert log.read_text().startswith('{"step"')


def test_stats_are_one_line_of_json(models):
    _, directory = models("llama")
    lines, done = generate(directory, "--max-tokens", 6, "--ignore-eos", "--stats", "json")
    stats = lines[-1]
    assert stats["new_tokens"] == 24 and stats["prefill_tokens"] == sum(map(len, PROMPTS))
    for key in ("new_tokens_per_s", "prefill_tokens_per_s", "peak_memory_mib"):
        assert math.isfinite(stats[key]) and stats[key] > 0
    assert len(lines) == 5


@pytest.fixture(scope="module")
def with_text(tmp_path_factory):
    """A model with a tokenizer of its own."""
    directory = tmp_path_factory.mktemp("text")
    spec = tokenizer_zoo.train("qwen2")
    tokenizer = tokenizer_zoo.save(spec, directory)
    torch.manual_seed(5)
    fields = FAMILIES["llama"][2] | dict(vocab_size=tokenizer.get_vocab_size() + 16, eos_token_id=0)
    model = LlamaForCausalLM(LlamaConfig(**fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(0.2 * torch.randn_like(parameter))
        model.lm_head.weight[tokenizer.get_vocab_size() :] = 0
        model.lm_head.weight[tokenizer.get_vocab_size() :, 0] = 50.0  # padding rows that would win half the time
    model.save_pretrained(directory)
    return model, tokenizer, directory


def test_text_comes_out_as_the_tokens_decode_and_padding_rows_are_never_sampled(with_text, tmp_path):
    _, tokenizer, directory = with_text
    flags = ["--prompt", "The quick brown", "--max-tokens", 40, "--seed", 3]
    printed = run_augur("generate", directory, *flags, stdin=b"").stdout.decode()
    output = tmp_path / "out.jsonl"
    assert run_augur("generate", directory, *flags, "--output", output).stdout == ""
    (rollout,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert rollout["prompt_tokens"] == tokenizer.encode("The quick brown").ids
    assert rollout["text"] + "\n" == printed
    assert max(rollout["tokens"]) < tokenizer.get_vocab_size()


def test_more_log_probs_than_tokens_name_the_flag_though_the_head_has_as_many_rows(with_text):
    _, tokenizer, directory = with_text
    tokens = tokenizer.get_vocab_size()
    for flags in (["--prompt", "The"], ["--tokens-input", "-"]):
        done = run_augur("generate", directory, *flags, "--top-logprobs", tokens, stdin=as_lines([[1]]), check=False)
        assert done.returncode == 2 and done.stderr.startswith(
            f"augur: --top-logprobs: top-{tokens} of a vocabulary of {tokens} tokens"
        )


def test_several_responses_are_printed_in_order_with_a_line_above_each(with_text, tmp_path):
    _, _, directory = with_text
    flags = ["--prompt", "The", "--prompt", "def main", "--samples", 2, "--max-tokens", 9]
    printed = run_augur("generate", directory, *flags, stdin=b"").stdout.decode()
    output = tmp_path / "out.jsonl"
    run_augur("generate", directory, *flags, "--output", output)
    expected = ""
    for line in output.read_text().splitlines():
        r = json.loads(line)
        expected += f"=== prompt {r['prompt'] + 1}, sample {r['sample'] + 1}\n{r['text']}\n"
    assert printed == expected


def test_a_stop_string_ends_a_response_even_across_tokens(with_text, tmp_path):
    _, tokenizer, directory = with_text
    output = tmp_path / "out.jsonl"
    base = ["generate", directory, "--prompt", "The", "--max-tokens", 60, "--ignore-eos", "--output", output]
    run_augur(*base)
    full = json.loads(output.read_text())
    pieces = [tokenizer.decode([t], skip_special_tokens=False) for t in full["tokens"]]
    at = next(i for i in range(5, 59) if "\ufffd" not in pieces[i] + pieces[i + 1] and pieces[i] and pieces[i + 1])
    stop = pieces[at][-1] + pieces[at + 1][0]
    run_augur(*base, "--stop", stop, "--stop", "never to be seen")
    stopped = json.loads(output.read_text())
    assert stopped["finish_reason"] == "stop"
    assert stopped["tokens"] == full["tokens"][: len(stopped["tokens"])]
    assert stop in stopped["text"] and stop not in tokenizer.decode(stopped["tokens"][:-1])


def test_prompts_come_from_data_files(with_text, tmp_path):
    _, tokenizer, directory = with_text
    data = tmp_path / "some.jsonl"
    data.write_text('{"question":"What is 1 + 1?","answer":2}\n{"question":"Why?","answer":"so"}\n')
    output = tmp_path / "out.jsonl"
    flags = ["--data", data, "--template", "Q: {prompt} A:", "--max-tokens", 3, "--output", output]
    run_augur("generate", directory, *flags)
    prompts = [json.loads(line)["prompt_tokens"] for line in output.read_text().splitlines()]
    assert prompts == [tokenizer.encode(t).ids for t in ("Q: What is 1 + 1? A:", "Q: Why? A:")]


def test_rows_without_a_prompt_are_named_and_the_others_are_kept(with_text, tmp_path):
    _, _, directory = with_text
    data = tmp_path / "some.jsonl"
    data.write_text('{"prompt":"a"}\n{"prompt":""}\n{"prompt":7}\n{"prompt":"b","answer":"1"}\n')
    output = tmp_path / "out.jsonl"
    flags = ["--data", data, "--max-tokens", 2, "--ignore-eos", "--output", output]
    done = run_augur("generate", directory, *flags, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 2
    assert f"{data}:2: the prompt is empty" in done.stderr and f"{data}:3: the prompt is a number" in done.stderr
    reasons = [json.loads(line)["finish_reason"] for line in output.read_text().splitlines()]
    assert reasons == ["length", "failed", "failed", "length"]
    data.write_text('{"text":"a"}\n{"text":"b"}\n')
    done = run_augur("generate", directory, *flags, check=False)
    assert done.returncode == 2 and ":1: no prompt; the row has text" in done.stderr and "--prompt-key" in done.stderr


def test_an_output_that_cannot_be_written_is_said_before_the_work(models, tmp_path):
    _, directory = models("llama")
    for output, message in ((tmp_path, "is a directory"), (tmp_path / "none" / "x", "check the path")):
        flags = ["--max-tokens", 500, "--samples", 200, "--ignore-eos", "--output", output]
        start = time.monotonic()
        done = run_augur("generate", directory, "--tokens-input", "-", *flags, stdin=as_lines(PROMPTS), check=False)
        assert done.returncode == 2 and message in done.stderr and time.monotonic() - start < 30
    with open("/dev/full", "w") as full:
        command = [PROGRAM, "generate", directory, "--tokens-input", "-", "--max-tokens", "2"]
        done = subprocess.run(command, input=as_lines(PROMPTS), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "standard output: cannot write" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tokenize", ROOT / "models" / "tiny"], {"text": "1 2"}),
        (["score", ROOT / "models" / "tiny"], {"tokens": [1, 2, 3]}),
        (["verify", "exact"], {"response": "1", "answer": "1"}),
    ],
)
def test_lines_that_cannot_be_written_are_an_error(words, line):
    with open("/dev/full", "w") as full:
        command = [PROGRAM, *words]
        done = subprocess.run(command, input=json.dumps(line), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "standard output: cannot write" in done.stderr


def test_a_signal_while_input_is_awaited_ends_the_program(models):
    command = [PROGRAM, "generate", models("llama")[1], "--tokens-input", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT


def test_without_a_prompt_the_error_says_how_to_give_one(models):
    done = run_augur("generate", models("llama")[1], check=False)
    assert done.returncode == 2 and "--prompt TEXT" in done.stderr


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1]
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_ctrl_c_keeps_what_is_there(models, tmp_path):
    _, directory = models("llama")
    output = tmp_path / "out.jsonl"
    command = [PROGRAM, "generate", directory, "--tokens-input", "-", "--output", output, "--max-tokens", "480"]
    command += ["--ignore-eos", "--samples", "64", "--stats", "json"]
    process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write(as_lines(PROMPTS[:3]))
    process.stdin.close()
    while not catches(process.pid, signal.SIGINT):
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    stats = json.loads(process.stdout.read())
    assert process.wait() == 130
    rollouts = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rollouts) == 192 and {r["finish_reason"] for r in rollouts} <= {"cancelled", "length"}
    assert "cancelled" in {r["finish_reason"] for r in rollouts}
    assert sum(len(r["tokens"]) for r in rollouts) == stats["new_tokens"]


@pytest.mark.slow
def test_smollm2_greedy_text_is_transformers():
    """The real model."""
    directory = smollm2_model()
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    prompt = make_sequences([40], seed=1, vocab=40000)[0]
    rollouts, _ = generate(
        directory, "--greedy", "--max-tokens", 24, "--ignore-eos", "--dtype", "fp32", prompts=[prompt]
    )
    assert rollouts[0]["tokens"] == greedy(model, prompt, 24)
    truth = log_probs(model, prompt + rollouts[0]["tokens"])[len(prompt) - 1 :]
    assert rollouts[0]["logprobs"] == pytest.approx(truth.tolist(), abs=1e-4)
