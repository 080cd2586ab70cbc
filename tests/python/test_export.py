"""`augur export`: a Hugging Face directory from any checkpoint; and runs in the place of models."""

import json
import re
import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from conftest import run_augur
from train_runs import make_policy, small_config


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module", params=["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def run(request, tmp_path_factory, policy):
    tmp_path = tmp_path_factory.mktemp("run")
    changes = dict(model__precision=request.param, train__steps=3, eval__files="[]")
    run_augur("train", small_config(tmp_path, policy, **changes))
    return tmp_path / "run"


def weights(directory):
    return load_file(directory / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and a[name].equal(b[name]) for name in a)


def test_the_last_checkpoint_is_the_model_and_others_are_their_own(run, tmp_path):
    out = run_augur("export", run, tmp_path / "last").stdout
    assert "step 3" in out and "global_step_3" in out
    assert equal(weights(tmp_path / "last"), weights(run / "model"))
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "last" / name).read_text() == (run / "model" / name).read_text()
    run_augur("export", run / "checkpoints" / "global_step_2", tmp_path / "two")
    assert not equal(weights(tmp_path / "two"), weights(run / "model"))


def test_the_type_may_be_chosen(run, tmp_path):
    checkpoint = run / "checkpoints" / "global_step_2"
    master = {
        name.removeprefix("master."): tensor
        for name, tensor in load_file(checkpoint / "tensors.safetensors").items()
        if name.startswith("master.")
    }
    run_augur("export", checkpoint, tmp_path / "fp32", "--dtype", "fp32")
    assert equal(weights(tmp_path / "fp32"), master)
    run_augur("export", checkpoint, tmp_path / "bf16", "--merge", "--dtype", "bf16")
    assert equal(weights(tmp_path / "bf16"), {name: tensor.bfloat16() for name, tensor in master.items()})
    assert json.loads((tmp_path / "bf16" / "config.json").read_text())["dtype"] == "bfloat16"


def test_transformers_and_augur_read_it(run, tmp_path):
    run_augur("export", run, tmp_path / "out", "--dtype", "fp32")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("3 1 2 =", return_tensors="pt").input_ids
    logprobs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    scored = run_augur("score", tmp_path / "out", stdin=json.dumps({"tokens": ids[0].tolist()})).stdout
    torch.testing.assert_close(torch.tensor(json.loads(scored)["logprobs"]), logprobs.detach(), rtol=0, atol=1e-4)
    run_augur("generate", tmp_path / "out", "--prompt", "3 1 2 =", "--max-tokens", 4)


def test_a_checkpoint_outlives_the_model_it_began_with(policy, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(policy, model)
    run_augur("sft", sft_config(tmp_path, model))
    shutil.rmtree(model)
    shutil.rmtree(tmp_path / "sft" / "model")
    done = run_augur("export", tmp_path / "sft", tmp_path / "out")
    assert "without a tokenizer" in done.stderr
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("end", ["", "/"])
def test_the_runs_own_tokenizer_serves_where_the_model_is_gone(policy, tmp_path, end):
    model = tmp_path / "model"
    shutil.copytree(policy, model)
    run_augur("sft", sft_config(tmp_path, model))
    shutil.rmtree(model)
    done = run_augur("export", f"{tmp_path}/sft/checkpoints/global_step_2{end}", tmp_path / "out")
    assert done.stderr == "" and (tmp_path / "out" / "tokenizer.json").exists()


def sft_config(tmp_path, model):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "3 1 2", "answer": "1 2 3"}) + "\n")
    config = tmp_path / "sft.yaml"
    config.write_text(
        f"run: {{dir: {tmp_path / 'sft'}, threads: 1}}\nmodel: {{path: {model}, precision: fp32}}\n"
        f"data: {{train: [{rows}]}}\nlog: {{console: false}}\nsft: {{steps: 2, batch: 1}}\n"
    )
    return config


def test_what_cannot_be_exported_is_said(run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    damaged = tmp_path / "global_step_2"
    shutil.copytree(run / "checkpoints" / "global_step_2", damaged)
    (damaged / "tensors.safetensors").write_bytes(b"x")
    for arguments, what in [
        ((run, tmp_path / "full"), "is not empty"),
        ((tmp_path / "full", tmp_path / "out"), "neither a run nor a checkpoint"),
        ((tmp_path / "nowhere", tmp_path / "out"), "does not exist"),
        ((damaged, tmp_path / "out"), "tensors.safetensors has 1 bytes"),
        ((run, tmp_path / "out", "--dtype", "fp64"), "unknown type 'fp64'"),
    ]:
        done = run_augur("export", *arguments, check=False)
        assert done.returncode == 2 and what in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert not (tmp_path / "out").exists()


COMMANDS = {
    "generate": ["--prompt", "1 2"],
    "eval": ["--data", "task:sort:count=2"],
    "score": [],
    "tokenize": [],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_in_the_place_of_a_model_is_told_what_to_use(run, tmp_path, command):
    def said(directory):
        done = run_augur(command, directory, *COMMANDS[command], stdin='{"tokens":[1,2]}\n', check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    line = said(run)
    assert "is the directory of a run" in line and str(run / "model") in line
    checkpoint = run / "checkpoints" / "global_step_2"
    line = said(checkpoint)
    assert "is a checkpoint" in line and f"augur export {checkpoint} OUT" in line
    assert "augur export CHECKPOINT OUT" in said(run / "checkpoints")
    for name in ("unfinished", "it's unfinished"):
        unfinished = tmp_path / name
        shutil.copytree(run, unfinished, ignore=shutil.ignore_patterns("model"))
        typed = re.search("`(.*)`", said(unfinished))[1]
        assert shlex.split(typed) == ["augur", "export", str(unfinished), "OUT"]
