"""augur bench: its figures fit together. Speed itself is no test."""

import json
import os
import re
import subprocess

import pytest

from conftest import ROOT, run_augur
from model_zoo import make_model


@pytest.mark.parametrize("family", ["llama", "qwen3-moe-norm"])
def test_the_parts_of_a_decode_step_add_up_to_less_than_the_step(tmp_path, family):
    make_model(family).save_pretrained(tmp_path)
    flags = ["--device", "cpu", "--batch", 3, "--samples", 2, "--prompt", 5, "--new", 9, "--rounds", 1]
    figures = json.loads(run_augur("bench", "rollout", tmp_path, *flags, "--parts", "--json").stdout)
    parts = {part["part"]: part for part in figures["parts"]}
    layers = json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"]
    assert parts["attention"]["calls"] == parts["qkv product"]["calls"] == layers
    assert parts["head product, sampling"]["calls"] == 1
    assert ("experts" in parts) == (family == "qwen3-moe-norm")
    assert all(part["ms"] > 0 for part in parts.values())
    assert figures["batch"] == 3 and figures["samples"] == 2 and figures["decode_tokens_per_s"] > 0


def test_text_shows_every_part_and_plain_runs_show_none(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    flags = ["--device", "cpu", "--batch", 2, "--prompt", 4, "--new", 4, "--rounds", 1]
    text = run_augur("bench", "rollout", tmp_path, *flags, "--parts").stdout
    assert "attention" in text and "one decode step" in text and "new tokens/s" in text
    assert "attention" not in run_augur("bench", "rollout", tmp_path, *flags).stdout


def test_a_busy_process_is_measured_and_gone_afterwards(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    flags = ["--device", "cpu", "--batch", 2, "--prompt", 4, "--new", 4, "--rounds", 1, "--threads", 2, "--with-load"]
    figures = json.loads(run_augur("bench", "rollout", tmp_path, *flags, "--json").stdout)
    assert figures["threads"] == 2 and figures["cpu"]
    load = figures["with_load"]
    assert load["new_tokens_per_s"] > 0
    assert load["of_idle"] == pytest.approx(load["new_tokens_per_s"] / figures["new_tokens_per_s"], rel=1e-6)
    assert "while a process keeps a core busy" in run_augur("bench", "rollout", tmp_path, *flags).stdout


def test_long_tailed_responses_leave_places_idle(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    flags = ["--device", "cpu", "--batch", 12, "--prompt", 4, "--new", 64, "--rounds", 1, "--max-batch", 6, "--json"]
    equal = json.loads(run_augur("bench", "rollout", tmp_path, *flags).stdout)
    assert equal["new_tokens"] == 12 * 64 and equal["idle_share"] == equal["preemptions"] == 0
    tailed = json.loads(run_augur("bench", "rollout", tmp_path, *flags, "--lengths", "long-tailed").stdout)
    assert 12 < tailed["new_tokens"] < 12 * 32 and 0 < tailed["idle_share"] < 1
    assert tailed["decode_batch"] == 6 and tailed["lengths"] == "long-tailed"


def test_decoded_tokens_are_those_of_decode_steps(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    flags = ["--device", "cpu", "--batch", 6, "--prompt", 4, "--rounds", 1, "--max-batch", 3]
    figures = json.loads(run_augur("bench", "rollout", tmp_path, *flags, "--new", 5, "--json").stdout)
    # The first token of each response is drawn by its prefill.
    assert figures["new_tokens"] == 30 and figures["decode_batch"] == 3
    step_s = figures["decode_step_ms"] / 1e3
    assert figures["decode_tokens_per_s"] * step_s == pytest.approx(3)
    alone = json.loads(run_augur("bench", "rollout", tmp_path, *flags, "--new", 1, "--json").stdout)
    assert alone["new_tokens"] == 6 and alone["decode_tokens_per_s"] == 0
    text = run_augur("bench", "rollout", tmp_path, *flags, "--new", 5, "--parts").stdout
    ms, tokens_per_s = map(float, re.search(r"sum +([\d.]+) +([\d.]+) tokens/s", text).groups())
    assert ms / 1e3 * tokens_per_s == pytest.approx(3, rel=0.1)


def test_threads_are_as_many_as_the_cores_that_the_process_may_use():
    flags = ["--batch", "2", "--prompt", "4", "--new", "4", "--rounds", "1", "--device", "cpu", "--json"]
    line = [ROOT / "build" / "augur", "bench", "rollout", ROOT / "models" / "tiny", *flags]
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        line, capture_output=True, text=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )
    assert json.loads(done.stdout)["threads"] == 1


def test_threads_beyond_reason_are_refused():
    done = run_augur("bench", "rollout", "--threads", 100_000, check=False)
    assert done.returncode == 2 and "100000 is not within 0 and 1024" in done.stderr


@pytest.mark.parametrize("bench", ["decide", "head", "train"])
def test_a_device_that_is_not_there_is_one_line(bench):
    done = run_augur("bench", bench, "--device", "foo", check=False)
    assert done.returncode == 2 and done.stderr.startswith("augur: --device: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", ["--rounds", "--micro-tokens", "--support"])
def test_nothing_is_measured_none_times(flag):
    done = run_augur("bench", "train", flag, 0, check=False)
    assert done.returncode == 2 and "0 is less than 1" in done.stderr


def test_there_is_one_bench_of_generation():
    assert run_augur("bench", "generate", check=False).returncode == 2
    assert run_augur("bench", "decode", check=False).returncode == 2


def test_an_unknown_flag_of_a_benchmark_is_sent_to_its_own_help():
    done = run_augur("bench", "rollout", "--thread", "1", check=False)
    assert done.returncode == 2
    assert "unknown flag '--thread'; did you mean '--threads'? (see augur bench rollout --help)" in done.stderr
