"""`augur sft` against transformers and torch's AdamW, and what it survives."""

import json
import re
import signal
import subprocess
import time

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from conftest import PROGRAM, run_augur
from train_runs import END_TOKENS, make_policy, read_metrics, without_times

STEPS = 8
ROWS = [("3 1 2", "1 2 3"), ("9 8", "8 9"), ("5 4 7 6", "4 5 6 7")]


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


def write_sft(tmp_path, policy, name="run", **changes):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in ROWS))
    settings = {"steps": STEPS, "batch": 3, "lr": 0.01, "eps": 1e-3, "weight_decay": 0.01} | changes
    lines = [
        f"run: {{dir: {tmp_path / name}, threads: 1}}",
        f"model: {{path: {policy}, precision: fp32}}",
        f"data: {{train: [{rows}], shuffle: false}}",
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
    examples = [(tokens_of(policy, p), tokens_of(policy, a) + END_TOKENS[:1]) for p, a in ROWS]
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


def test_a_resumed_run_may_not_change_what_it_computes(tmp_path, policy):
    run_augur("sft", write_sft(tmp_path, policy))
    changed = run_augur("sft", write_sft(tmp_path, policy, lr=0.02), check=False)
    assert changed.returncode == 2 and "sft.lr: 0.01 -> 0.02" in changed.stderr
