"""run.deterministic: two equal runs are equal to the bit, long sequences and experts included, one killed too."""

import json
import signal

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from conftest import ROOT, run_augur
from train_runs import VOCAB, read_metrics, start, wait_for_step, without_times

STEPS = 6
SHAPE = dict(
    vocab_size=VOCAB,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,  # of the fused attention kernels
    max_position_embeddings=4096,
    tie_word_embeddings=True,
)
EXPERTS = dict(moe_intermediate_size=128, num_experts=8, num_experts_per_tok=2)


@pytest.fixture(scope="session", params=["dense", pytest.param("experts", marks=pytest.mark.slow)])
def model(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    made = (
        Qwen3ForCausalLM(Qwen3Config(**SHAPE))
        if request.param == "dense"
        else Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **EXPERTS))
    )
    made.to(torch.bfloat16).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_text((ROOT / "models" / "tiny" / name).read_text())
    return directory


def write_config(tmp_path, name, model, device, length):
    """Examples of a half to a fifth of `length` tokens: digits."""
    rows = [{"prompt": f"{i}", "answer": " ".join(str(i * j % 10) for j in range(length // (2 + i)))} for i in range(4)]
    data = tmp_path / "long.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tmp_path / f"{name}.yaml"
    config.write_text(
        f"run: {{dir: {tmp_path / name}, device: {device}, deterministic: true}}\n"
        f"model: {{path: {model}, precision: bf16}}\n"
        f"data: {{train: [{data}]}}\n"
        "checkpoint: {every: 1, keep: 1}\n"
        "log: {console: false}\n"
        f"sft: {{steps: {STEPS}, batch: 4, lr: 0.001}}\n"
    )
    return config


@pytest.mark.slow
def test_equal_runs_are_equal_to_the_bit_killed_or_not(tmp_path, device, model):
    length = 8000 if device == "cuda" else 800
    configs = {name: write_config(tmp_path, name, model, device, length) for name in ("one", "two", "killed")}
    for name in ("one", "two"):
        run_augur("sft", configs[name])
    process = start(configs["killed"], command="sft")
    wait_for_step(tmp_path / "killed", 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    run_augur("sft", configs["killed"])
    lines = {name: without_times(read_metrics(tmp_path / name)) for name in configs}
    assert len(lines["one"]) == STEPS and lines["one"][0]["data"]["train/loss"] > 0
    assert lines["one"] == lines["two"]
    assert lines["one"] == lines["killed"]
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in configs]
    assert weights[0] == weights[1] == weights[2]
