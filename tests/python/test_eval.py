"""augur eval and augur doctor: figures from responses that are scored again here, and parity of rollout and trainer."""

import json
from collections import Counter

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tokenizer_zoo
from conftest import run_augur
from model_zoo import FAMILIES, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that mostly says one of a few letters, so that votes and passes differ."""
    directory = tmp_path_factory.mktemp("eval")
    tokenizer = tokenizer_zoo.save(tokenizer_zoo.train("qwen2"), directory)
    torch.manual_seed(1)
    fields = FAMILIES["llama"][2] | dict(
        vocab_size=tokenizer.get_vocab_size(), eos_token_id=0, tie_word_embeddings=False
    )
    network = LlamaForCausalLM(LlamaConfig(**fields))
    with torch.no_grad():
        network.lm_head.weight.mul_(0.5)
        direction = torch.randn(fields["hidden_size"])
        for letter, size in (("a", 1.2), ("b", 1.1), ("c", 1.0), ("d", 0.9)):
            network.lm_head.weight[tokenizer.token_to_id(letter)] += size * direction
        for layer in network.model.layers:
            layer.mlp.down_proj.weight.zero_()
            layer.self_attn.o_proj.weight.zero_()
        network.model.embed_tokens.weight.copy_(direction + 0.3 * torch.randn_like(network.model.embed_tokens.weight))
        network.model.norm.weight.fill_(0.35)
    network.save_pretrained(directory)
    return directory


@pytest.fixture
def data(tmp_path):
    first, second = tmp_path / "letters.jsonl", tmp_path / "other.jsonl"
    rows = [{"question": f"Which letter is number {i}?", "answer": "abcd"[i % 4]} for i in range(8)]
    first.write_text("".join(json.dumps(row) + "\n" for row in rows))
    second.write_text(json.dumps({"prompt": "The", "answer": "a", "data_source": "words"}) + "\n")
    return [first, second]


def evaluate(model, data, tmp_path, *flags, check=True):
    out, responses = tmp_path / "out.json", tmp_path / "responses.jsonl"
    flags = ["--max-tokens", 1, "--output", out, "--responses", responses, *flags]
    done = run_augur("eval", model, "--data", *data, *flags, check=check)
    return done, json.loads(out.read_text()), [json.loads(line) for line in responses.read_text().splitlines()]


def test_rows_that_cannot_be_used_are_named_and_the_others_scored(model, data, tmp_path):
    data[0].write_text(data[0].read_text() + '{"question":"","answer":"a"}\n{"question":"x"}\n')
    done, report, responses = evaluate(model, data, tmp_path, "--samples", 2, check=False)
    assert done.returncode == 2 and report["overall"]["prompts"] == 9
    assert [f.split(": ", 1)[1].split(";")[0] for f in report["failed"]] == ["the prompt is empty", "no answer"]
    data[0].write_text('{"question":"x"}\n')
    done = run_augur("eval", model, "--data", data[0], check=False)
    assert done.returncode == 2 and "--answer-key" in done.stderr and done.stderr.count("\n") == 1


def test_a_dash_is_standard_output(model, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["eval", model, "--data", *data, "--max-tokens", 1, "--samples", 1]
    assert json.loads(run_augur(*command, "--json", "-").stdout)["overall"]["prompts"] == 9
    lines = run_augur(*command, "--responses", "-").stdout.splitlines()
    assert len(lines) == 9 and all("response" in json.loads(line) for line in lines)
    assert not (tmp_path / "-").exists()
    done = run_augur(*command, "--json", "x", "--responses", "x", check=False)
    assert done.returncode == 2 and "--responses: is x, as --output is" in done.stderr


def test_figures_are_those_of_the_responses(model, data, tmp_path):
    done, report, responses = evaluate(model, data, tmp_path, "--samples", 8, "--seed", 5)
    assert set(report["sources"]) == {"letters", "words"} and len(responses) == 9 * 8
    by_prompt: dict[int, list[dict]] = {}
    for r in responses:
        assert r["score"] == (r["response"].strip() == r["ground_truth"])
        by_prompt.setdefault(r["prompt"], []).append(r)
    for source, figures in report["sources"].items():
        groups = [g for g in by_prompt.values() if g[0]["data_source"] == source]
        rights = [sum(r["score"] for r in g) for g in groups]
        majority = []
        for g in groups:
            votes = Counter(r["response"].strip() for r in g if r["response"].strip())
            majority.append(votes.most_common(1)[0][0] == g[0]["ground_truth"])
        assert figures["prompts"] == len(groups)
        assert figures["avg@8"] == pytest.approx(sum(rights) / 8 / len(groups))
        assert figures["maj@8"] == pytest.approx(sum(majority) / len(groups))
        assert figures["pass@8"] == pytest.approx(sum(r > 0 for r in rights) / len(groups))
        assert figures["pass@1"] == pytest.approx(figures["avg@8"])
    assert 0 < report["overall"]["avg@8"] < 1
    lines = done.stdout.splitlines()
    assert "avg@8" in lines[0] and [line.split()[0] for line in lines[1:]] == ["letters", "words", "all"]


def test_tokens_and_responses_cut_off_are_counted(model, data, tmp_path):
    out, responses = tmp_path / "out.json", tmp_path / "responses.jsonl"
    flags = ["--max-tokens", 2, "--samples", 8, "--stop", "b", "--output", out, "--responses", responses]
    run_augur("eval", model, "--data", data[0], *flags)
    overall = json.loads(out.read_text())["overall"]
    cut = [json.loads(line)["finish_reason"] == "length" for line in responses.read_text().splitlines()]
    assert 0 < sum(cut) < len(cut) and overall["cut_off"] == pytest.approx(sum(cut) / len(cut))
    assert 1 < overall["response_tokens"] < 2


def test_the_seed_decides(model, data, tmp_path):
    runs = [evaluate(model, data, tmp_path, "--samples", 4, "--seed", seed) for seed in (1, 1, 2)]
    assert runs[0][1] == runs[1][1] and runs[0][2] == runs[1][2] != runs[2][2]


@pytest.mark.parametrize("command", ["eval", "generate"])
def test_every_sampling_flag_has_its_effect(model, data, tmp_path, command):
    """Whatever leaves only the most likely token gives what greedy sampling gives."""
    out = tmp_path / "out.jsonl"
    given = ["--data", data[0], "--responses"] if command == "eval" else ["--prompt", "Which letter", "--output"]
    text = "response" if command == "eval" else "text"

    def responses(*flags):
        run_augur(command, model, *given, out, "--samples", 8, *flags)
        return [json.loads(line)[text] for line in out.read_text().splitlines()]

    short = ["--max-tokens", 2]
    plain, greedy = responses(*short), responses(*short, "--temperature", 0)
    assert len(plain) == (64 if command == "eval" else 8)
    assert len(set(plain[:8])) > 1 and len(set(greedy[:8])) == 1
    for flags in (["--greedy"], ["--top-k", 1], ["--top-p", 0.01], ["--min-p", 1]):
        assert responses(*short, *flags) == greedy, flags
    assert responses(*short, "--temperature", 3) != plain != responses(*short, "--seed", 1)
    long = responses("--max-tokens", 5)
    assert all(a.startswith(b) and len(a) > len(b) for a, b in zip(long, plain, strict=True))
    letter = greedy[0][0]
    stopped = responses(*short, "--stop", letter)
    assert all(letter not in r[:-1] for r in stopped) and stopped != plain


def test_a_named_verifier_scores_and_an_unknown_one_is_an_error(model, data, tmp_path):
    _, report, _ = evaluate(model, data, tmp_path, "--samples", 2, "--verifier", "math_dapo")
    assert report["overall"]["avg@2"] == 0 and report["overall"]["score"] == -1
    done = run_augur("eval", model, "--data", *data, "--verifier", "exakt", check=False)
    assert done.returncode == 2 and "did you mean 'exact'" in done.stderr


def test_a_prompt_that_fails_is_named_and_the_others_count(model, data, tmp_path):
    with data[0].open("a") as file:
        file.write(json.dumps({"question": "x " * 600, "answer": "a"}) + "\n")
    done, report, _ = evaluate(model, data, tmp_path, "--samples", 2, check=False)
    assert done.returncode == 2 and "letters.jsonl:9: " in done.stderr and "context of 512" in done.stderr
    assert report["sources"]["letters"]["prompts"] == 8 and len(report["failed"]) == 1


def test_a_limit_takes_the_beginning_of_each_file(model, data, tmp_path):
    _, report, _ = evaluate(model, data, tmp_path, "--samples", 2, "--prompts", 3)
    assert report["sources"]["letters"]["prompts"] == 3 and report["sources"]["words"]["prompts"] == 1


@pytest.mark.parametrize("family", ["llama3-rope", "qwen2", "qwen3-tied-bias", "qwen3-moe-norm"])
def test_doctor_finds_fp32_rollout_and_trainer_alike(tmp_path, family):
    make_model(family).save_pretrained(tmp_path)
    done = run_augur("doctor", tmp_path, "--json", "--prompts", 3, "--max-tokens", 20)
    reports = {r["precision"]: r for r in map(json.loads, done.stdout.splitlines())}
    assert list(reports) == ["fp32", "bf16", "fp8_rollout", "fp8", "bf16+fp8_kv"]
    for report in reports.values():
        assert report["tokens"] == 60
        for figures in (report["logprob_difference"], report["kl"]):
            assert sum(figures["histogram"]) == 60
            assert 0 <= figures["p50"] <= figures["p95"] <= figures["max"]
            assert set(figures["share_above"]) == {"0.05", "0.15"}
    assert reports["fp32"]["ok"] and reports["fp32"]["logprob_difference"]["max"] <= 1e-4
    assert reports["fp32"]["kl"]["max"] <= 1e-6
    kl = {precision: report["kl"]["mean"] for precision, report in reports.items()}
    assert min(kl["fp8_rollout"], kl["bf16+fp8_kv"]) > 10 * max(kl["bf16"], kl["fp32"])
    assert kl["fp8"] < kl["fp8_rollout"] / 3  # both sides round alike


def test_doctor_shows_machine_and_histogram(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    text = run_augur("doctor", tmp_path, "--precision", "bf16", "--prompts", 2, "--max-tokens", 8).stdout
    assert "machine" in text and "parity of rollout (bf16) and trainer" in text and "above 0.15" in text
    assert "parity" not in run_augur("doctor").stdout
