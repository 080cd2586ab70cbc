"""What `augur train` survives: kills, signals, damage, a full disk, a second process, changed settings, bad numbers."""

import json
import os
import random
import shutil
import signal
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ROOT, run_augur
from train_runs import (
    STEPS,
    make_policy,
    read_metrics,
    small_config,
    start,
    wait_for_step,
    without_times,
    write_config,
)


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def straight(tmp_path_factory, policy):
    """The metrics of twelve steps without interruption."""
    tmp_path = tmp_path_factory.mktemp("straight")
    run_augur("train", small_config(tmp_path, policy))
    return without_times(read_metrics(tmp_path / "run"))


def test_a_run_repeats_to_the_bit(tmp_path, policy, straight):
    run_augur("train", small_config(tmp_path, policy))
    assert without_times(read_metrics(tmp_path / "run")) == straight
    assert [line["step"] for line in straight] == list(range(STEPS + 1))


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_and_resumed_it_is_the_same_run(tmp_path, policy, straight, seed):
    rng = random.Random(seed)
    config = small_config(tmp_path, policy)
    for _ in range(4):
        process = start(config)
        try:
            process.wait(timeout=rng.uniform(0.3, 1.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    run_augur("train", config)
    assert without_times(read_metrics(tmp_path / "run")) == straight


def test_killed_inside_checkpoint_writing_and_resumed_it_is_the_same_run(tmp_path, policy, straight):
    config = small_config(tmp_path, policy)
    run = tmp_path / "run"
    for _ in range(3):
        process = start(config)
        while process.poll() is None:  # strike as soon as a checkpoint is being written
            if list((run / "checkpoints").glob("unfinished_*")):
                process.send_signal(signal.SIGKILL)
        process.wait()
    run_augur("train", config)
    assert without_times(read_metrics(run)) == straight
    assert not list((run / "checkpoints").glob("unfinished_*"))


def test_stale_rollouts_survive_a_kill(tmp_path, policy):
    config = small_config(tmp_path, policy, name="whole", rollout__staleness=2)
    run_augur("train", config)
    whole = without_times(read_metrics(tmp_path / "whole"))
    ages = [line["data"]["rollout/age"] for line in whole if "rollout/age" in line["data"]]
    assert ages == [0, 1] + [2] * (STEPS - 2)
    config = small_config(tmp_path, policy, name="cut", rollout__staleness=2)
    process = start(config)
    wait_for_step(tmp_path / "cut", 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run_augur("train", config)
    assert without_times(read_metrics(tmp_path / "cut")) == whole


def test_a_second_process_on_the_same_run_directory_is_refused(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=500)
    process = start(config)
    wait_for_step(tmp_path / "run", 1, process)
    second = run_augur("train", config, check=False)
    assert second.returncode == 2
    assert "another process is using this run directory" in second.stderr and second.stderr.count("\n") == 1
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, policy, straight, damage):
    config = small_config(tmp_path, policy, train__steps=6)
    run_augur("train", config)
    newest = tmp_path / "run" / "checkpoints" / "global_step_6"
    tensors = newest / "tensors.safetensors"
    if damage == "flip":
        data = bytearray(tensors.read_bytes())
        data[len(data) // 2] ^= 1
        tensors.write_bytes(data)
    elif damage == "cut":
        os.truncate(tensors, tensors.stat().st_size - 1)
    elif damage == "remove":
        tensors.unlink()
    else:
        (newest / "manifest.json").write_text("{")
    resumed = run_augur("train", config, f"train.steps={STEPS}", "log.console=true")
    assert f"{newest} is damaged" in resumed.stderr and "global_step_5" in resumed.stderr
    found, expected = without_times(read_metrics(tmp_path / "run")), straight
    assert found[-1] == expected[-1] and len(found) == len(expected)


def test_changed_settings_are_named_and_refused_unless_told(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=2)
    run_augur("train", config)
    changed = ("train.lr=0.02", "rollout.temperature=0.9", "train.steps=3")
    refused = run_augur("train", config, *changed, check=False)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "train.lr: 0.01 -> 0.02" in refused.stderr and "rollout.temperature" in refused.stderr
    run_augur("train", config, *changed, "run.resume_changed=true")
    assert read_metrics(tmp_path / "run")[-1]["step"] == 3
    run_augur("train", config, "train.lr=0.02", "run.resume=never")
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1, 2]


def test_before_and_after_are_measured_alike(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=2)
    run_augur("train", config)
    refused = run_augur("train", config, "train.steps=3", "eval.samples=4", check=False)
    assert refused.returncode == 2 and "eval.samples: 2 -> 4" in refused.stderr


def test_a_reference_model_with_another_vocabulary_is_refused(tmp_path, policy):
    other = tmp_path / "other"
    shutil.copytree(policy, other)
    fields = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(fields | {"vocab_size": fields["vocab_size"] + 8}))
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + "\n")
    config = small_config(tmp_path, policy, train__steps=1)
    done = run_augur("train", config, f"model.reference={other}", "algorithm.kl_coef=0.1", check=False)
    assert done.returncode == 2 and "model.reference" in done.stderr and done.stderr.count("\n") == 1


def test_a_reference_model_may_have_more_rows_beyond_the_same_tokens(tmp_path, policy):
    """As Qwen2.5's 1.5B and 7B have 151,936 and 152,064."""
    changes = dict(algorithm__kl_coef=0.1, algorithm__skip_equal_groups="false", train__epochs=2)
    config = small_config(tmp_path, policy, train__steps=2, checkpoint__every=0, **changes)
    run_augur("train", config)
    metrics = without_times(read_metrics(tmp_path / "run"))
    assert all(line["data"]["actor/kl_loss"] > 0 for line in metrics[-1:])
    other = tmp_path / "other"
    shutil.copytree(policy, other)
    fields = json.loads((other / "config.json").read_text())
    rows = fields["vocab_size"]
    (other / "config.json").write_text(json.dumps(fields | {"vocab_size": rows + 8}))
    weights = load_file(other / "model.safetensors")
    wider = {
        name: torch.cat([t, torch.ones(8, t.shape[1], dtype=t.dtype)]) if t.shape[:1] == (rows,) and t.dim() == 2 else t
        for name, t in weights.items()
    }
    assert wider.keys() == weights.keys() and any(wider[n].shape != weights[n].shape for n in weights)
    save_file(wider, other / "model.safetensors", {"format": "pt"})
    run_augur("train", config, f"model.reference={other}", f"run.dir={tmp_path / 'wider'}")
    assert without_times(read_metrics(tmp_path / "wider")) == metrics


def test_a_prompt_that_fills_the_context_is_named(tmp_path, policy):
    data = tmp_path / "long.jsonl"
    data.write_text(json.dumps({"prompt": "1 " * 5000, "answer": "1"}) + "\n")
    config = small_config(tmp_path, policy, train__steps=1, data__max_prompt_tokens=100000)
    for changes in ([f"data.train=[{data}]"], [f"eval.files=[{data}]"]):
        done = run_augur("train", config, *changes, check=False)
        assert done.returncode == 2 and f"{data}:1: the prompt has" in done.stderr


PADDED_LOSSES = {
    "masked": dict(algorithm__kl_coef=0.1),
    "gspo": dict(algorithm__loss="gspo", algorithm__loss_clip_low=0.1, algorithm__loss_clip_high=0.1),
    "recomputed": dict(algorithm__anchor="recomputed", algorithm__loss="tis"),
}


@pytest.mark.parametrize(("loss", "size"), [("masked", 9), ("gspo", 0.12), ("gspo", 9), ("recomputed", 0.12)])
def test_rows_of_the_head_behind_the_tokenizer_have_no_part(tmp_path, policy, loss, size):
    """A head padded with rows, of ordinary size or such that would win every draw, trains as the one without them, and
    they stay as they are."""
    padded = tmp_path / "padded"
    shutil.copytree(policy, padded)
    fields = json.loads((padded / "config.json").read_text())
    (padded / "config.json").write_text(json.dumps(fields | {"vocab_size": fields["vocab_size"] + 40}))
    tensors = load_file(padded / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    padding = size * torch.randn(40, table.shape[1], generator=torch.Generator().manual_seed(1))
    save_file(tensors | {"model.embed_tokens.weight": torch.cat([table, padding])}, padded / "model.safetensors")
    changes = dict(train__steps=2, train__weight_decay=0, audit__every=1) | PADDED_LOSSES[loss]
    lines = []
    for name, model in (("plain", policy), ("wide", padded)):
        run_augur("train", small_config(tmp_path, model, name, **changes))
        lines.append(without_times(read_metrics(tmp_path / name)))
    for plain, wide in zip(*lines, strict=True):
        assert plain["data"].keys() == wide["data"].keys()
        for key, value in plain["data"].items():
            assert wide["data"][key] == pytest.approx(value, rel=1e-3, abs=1e-5), key
    trained = load_file(tmp_path / "wide" / "model" / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(trained[-40:], padding)


def test_a_model_that_only_fails_stops_the_run(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=6, train__lr=1e30, eval__files="[]")
    done = run_augur("train", config, "train.warmup_steps=0", check=False)
    assert done.returncode == 2 and "could be generated" in done.stderr and "train.lr" in done.stderr


def test_only_the_newest_checkpoints_are_kept(tmp_path, policy):
    run_augur("train", small_config(tmp_path, policy, train__steps=5, checkpoint__keep=2))
    names = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["global_step_4", "global_step_5", "latest_checkpointed_iteration.txt"]


def test_a_nan_in_a_gradient_skips_the_update_and_is_counted(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=3)
    run_augur("train", config, "--corrupt-gradient", 2)
    lines = {line["step"]: line["data"] for line in read_metrics(tmp_path / "run")}
    assert [lines[s]["actor/skipped_updates"] for s in (1, 2, 3)] == [0, 1, 0]
    assert lines[2]["actor/updates"] == 1


def test_too_many_bad_updates_in_a_row_stop_the_run_with_a_diagnosis(tmp_path, policy):
    config = small_config(tmp_path, policy, train__max_bad_updates=1)
    done = run_augur("train", config, "--corrupt-gradient", 3, check=False)
    assert done.returncode == 2 and "not finite" in done.stderr and "step 3" in done.stderr
    assert (tmp_path / "run" / "checkpoints" / "global_step_2").is_dir()


def test_a_reward_that_fails_scores_as_configured_and_is_counted(tmp_path, policy):
    rows = [{"prompt": "1 2 =", "answer": ["not", "text"]}, {"prompt": "3 4 =", "answer": "3 4"}]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = small_config(
        tmp_path, policy, train__steps=1, data__train=f"[{data}]", reward__error_score=-2, reward__overlong_buffer=0
    )
    said = run_augur("train", config, "train.steps=2", "log.console=true").stderr
    assert said.count("could not be scored and got reward.error_score; here: ") == 1 and f"{data}:" in said
    last = read_metrics(tmp_path / "run")[-1]["data"]
    assert last["reward/errors"] == 2 and last["critic/score/min"] == -2


def test_dynamic_sampling_refills_the_batch_with_mixed_groups(tmp_path):
    """The bundled model, about a third of whose responses are right."""
    changes = dict(algorithm__dynamic_sampling="true", rollout__prompts=4, rollout__group=4, train__minibatch=4)
    changes |= dict(data__train="[task:sort:count=512:seed=11]", rollout__max_tokens=16, train__lr=1e-4, train__steps=4)
    config = small_config(tmp_path, ROOT / "models" / "tiny", eval__files="[]", **changes)
    run_augur("train", config)
    lines = [line["data"] for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    assert any(line["rollout/refills"] > 0 for line in lines)
    for line in lines:
        assert line["rollout/groups"] == 4 and abs(line["critic/advantages/max"]) > 0


FULL_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <stdio.h>
/* Files below the directory FULL_BELOW share FULL_AFTER bytes of room. */
static long used;
ssize_t write(int fd, const void* data, size_t size) {
  static ssize_t (*real)(int, const void*, size_t);
  if (!real) real = (ssize_t (*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0) {
    path[length] = 0;
    if (strstr(path, getenv("FULL_BELOW"))) {
      used += (long)size;
      if (used > atol(getenv("FULL_AFTER"))) { errno = ENOSPC; return -1; }
    }
  }
  return real(fd, data, size);
}
"""


@pytest.fixture(scope="session")
def full_disk(tmp_path_factory):
    """A library that, preloaded, lets writes fail as a full disk does."""
    directory = tmp_path_factory.mktemp("full")
    (directory / "full.c").write_text(FULL_DISK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", directory / "full.so", directory / "full.c", "-ldl"], check=True)
    return directory / "full.so"


@pytest.mark.slow
def test_a_full_disk_loses_at_most_the_unfinished_checkpoint(tmp_path, policy, straight, full_disk):
    config = small_config(tmp_path, policy)
    run = tmp_path / "run"
    seen = set()
    for room in (100, 3_000, 60_000, 200_000, 260_000, 420_000, 700_000, 1_000_000):
        shutil.rmtree(run, ignore_errors=True)
        environment = os.environ | {"LD_PRELOAD": str(full_disk), "FULL_BELOW": str(run), "FULL_AFTER": str(room)}
        process = start(config, env=environment)
        _, err = process.communicate(timeout=60)
        if process.returncode == 0:
            continue
        assert process.returncode == 2 and "No space left" in err and err.count("\n") == 1, err
        seen.add("checkpoint" in err)
        assert not list((run / "checkpoints").glob("unfinished_*"))
        run_augur("train", config)
        assert without_times(read_metrics(run)) == straight
    assert seen >= {True}


@pytest.mark.parametrize(
    "mask", ["predictive-kl-aggregated", "predictive-kl-exact", "predictive-tv-uniform", "predictive-reverse-kl-exact"]
)
def test_the_tokens_shown_carry_the_decisions_that_were_taken(tmp_path, policy, mask):
    """The reference decides again from supports scored again; the points hold what the head decided."""
    run = tmp_path / "run"
    changes = {"mask__preset": mask, "mask__delta": 0.02, "rollout__support": 2, "log__tokens": 8, "train__steps": 1}
    run_augur("train", write_config(tmp_path / "c.yaml", policy, run, **changes), "log.console=false")
    [points] = [json.loads(line) for line in (run / "points.jsonl").read_text().splitlines()]
    taken = {
        (round(ratio, 3), round(divergence, 4)): direction for ratio, divergence, direction, *_ in points["points"]
    }
    compared = 0
    for line in (run / "tokens.jsonl").read_text().splitlines():
        for token in json.loads(line)["tokens"]:
            direction = taken.get((round(token["ratio"], 3), round(token["divergence"], 4)))
            if direction is not None:
                assert token["direction"] == pytest.approx(direction, abs=2e-4)
                assert token["local"] + token["global"] == pytest.approx(token["direction"], abs=1e-6)
                compared += 1
    assert compared > 10


def test_a_budget_sets_delta_for_every_minibatch(tmp_path, policy):
    """The share outside is that of the whole minibatch, however it falls into micro-batches."""
    run = tmp_path / "run"
    changes = dict(mask__outside_budget=0.1, train__steps=2, train__micro_tokens=40, log__tokens=4)
    run_augur("train", write_config(tmp_path / "c.yaml", policy, run, **changes), "log.console=false")
    for line in read_metrics(run):
        data = line["data"]
        # Before the first update divergences are rounding, which differs between the two passes.
        assert 0.05 < data["mask/outside"] <= 0.15 and data["mask/delta"] > 0
    shown = [json.loads(line) for line in (run / "tokens.jsonl").read_text().splitlines()]
    assert shown and all(response["delta"] != 0.15 for response in shown)
    for response in shown:
        for token in response["tokens"]:
            assert token["outside"] == (token["divergence"] > response["delta"])


def test_the_mismatch_between_sampler_and_trainer_is_logged(tmp_path, policy):
    found = {}
    for precision in ("fp32", "bf16", "fp8_rollout", "fp8"):
        run = tmp_path / precision
        config = write_config(tmp_path / "c.yaml", policy, run, train__steps=2, model__precision=precision)
        run_augur("train", config, "log.console=false")
        found[precision] = read_metrics(run)[1]["data"]  # after an update: that of the step before is not counted
    means = [found[precision]["mismatch/logp_diff_mean"] for precision in found]
    assert means[0] < 1e-5 and 10 * means[0] < means[1] < means[2] < 0.5
    assert means[3] < means[2] / 10  # both sides round to FP8
    assert found["fp32"]["mismatch/logp_diff_max"] < 1e-4
    assert 0 < found["bf16"]["mismatch/kl"] < found["fp8_rollout"]["mismatch/kl"]
