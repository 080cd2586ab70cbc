"""log.wandb, with the real package in its offline mode."""

import importlib.util
import json
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import PROGRAM, run_augur
from train_runs import make_policy, read_metrics, write_config


def train(config, *changes, **environment):
    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"} | environment
    return run_augur("train", config, *changes, check=False, environment=settings)


def log_records(log: bytes) -> Iterator[bytes]:
    """The records of a file of wandb's: LevelDB's log, whose first block begins with a header of 7 bytes."""
    block, header, at, record = 32768, struct.Struct("<IHB"), 7, b""
    while at + header.size <= len(log):
        if block - at % block < header.size:  # zeros up to the next block
            at += block - at % block
            continue
        _, length, kind = header.unpack_from(log, at)
        record += log[at + header.size : at + header.size + length]
        at += header.size + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def offline_runs(run) -> list[dict]:
    """What wandb has written for each of its runs: the id, and the history by step."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
        history, name = {}, None
        for data in log_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                name = record.run.run_id
            if record.WhichOneof("record_type") == "history":
                items = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
                history.setdefault(items.get("_step", record.history.step.num), {}).update(items)
        found.append({"id": name, "history": history})
    return found


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb")
def test_metrics_and_report_go_to_one_run_that_goes_on(tmp_path):
    config = write_config(
        tmp_path / "c.yaml", make_policy(tmp_path / "policy"), tmp_path / "run", log__wandb="sorting", train__steps=2
    )
    done = train(config)
    assert done.returncode == 0, done.stderr
    done = train(config, "train.steps=4")
    assert done.returncode == 0, done.stderr
    first, second = offline_runs(tmp_path / "run")
    assert first["id"] == second["id"] == json.loads((tmp_path / "run" / "wandb.json").read_text())["id"]
    metrics = {line["step"]: line["data"] for line in read_metrics(tmp_path / "run")}
    for history, steps in ((first["history"], (1, 2)), (second["history"], (3, 4))):
        for step in steps:
            for name in ("actor/pg_loss", "critic/score/mean", "mask/masked"):
                assert history[step][name] == pytest.approx(metrics[step][name], rel=1e-12)
        assert any("report/path" in items for items in history.values())


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb")
@pytest.mark.slow
def test_a_run_that_begins_anew_does_so_there_too(tmp_path):
    run = tmp_path / "run"
    policy = make_policy(tmp_path / "policy")
    config = write_config(
        tmp_path / "c.yaml", policy, run, log__wandb="sorting", train__steps=3, checkpoint__every=1, checkpoint__keep=0
    )
    assert train(config).returncode == 0
    (first,) = offline_runs(run)
    before = (run / "wandb.json").read_bytes()
    assert train(config, "model.path=nowhere", "run.resume=never").returncode == 2
    assert (run / "wandb.json").read_bytes() == before and len(offline_runs(run)) == 1
    assert train(config, "run.resume=1").returncode == 0
    second = next(r for r in offline_runs(run) if r["id"] != first["id"])
    assert {2, 3} <= set(second["history"]) and 1 not in second["history"]
    assert (run / "checkpoints" / "abandoned-1" / "wandb.json").read_bytes() == before
    assert train(config, "run.resume=never").returncode == 0
    third = next(r for r in offline_runs(run) if r["id"] not in (first["id"], second["id"]))
    assert {1, 2, 3} <= set(third["history"])
    assert json.loads((run / "wandb.json").read_text())["id"] == third["id"]


def test_a_signal_ends_the_wait_for_its_server(tmp_path):
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "wandb.py").write_text(
        f"import time\ndef init(**_):\n    open({str(tmp_path / 'waits')!r}, 'w')\n    time.sleep(600)\n"
    )
    config = write_config(tmp_path / "c.yaml", make_policy(tmp_path / "policy"), tmp_path / "run", log__wandb="x")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "slow")}
    process = subprocess.Popen([PROGRAM, "train", config], stdout=subprocess.PIPE, text=True, env=environment)
    while not (tmp_path / "waits").exists():
        assert process.poll() is None
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "stopped by SIGTERM before it began; nothing was changed" in said
    assert time.monotonic() - began < 10
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_without_the_package_the_run_does_not_begin(tmp_path):
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "wandb.py").write_text("raise ImportError('not here')\n")
    config = write_config(tmp_path / "c.yaml", make_policy(tmp_path / "policy"), tmp_path / "run", log__wandb="x")
    done = train(config, PYTHONPATH=str(tmp_path / "without"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "log.wandb:" in done.stderr and "pip install wandb" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


STALLED = """
import importlib.util, time

assert importlib.util.find_spec("masks") is None  # files of python/augur are no modules of their own

class Run:
    def log(self, *args, **kwargs):
        time.sleep(600)

    def finish(self):
        time.sleep(600)

def init(**_):
    return Run()
"""


def start_stalled(tmp_path, steps: int) -> subprocess.Popen:
    (tmp_path / "stalled").mkdir()
    (tmp_path / "stalled" / "wandb.py").write_text(STALLED)
    config = write_config(
        tmp_path / "c.yaml", make_policy(tmp_path / "policy"), tmp_path / "run", log__wandb="x", train__steps=steps,
        rollout__prompts=1, rollout__group=2, rollout__max_tokens=2, reward__overlong_buffer=0, train__minibatch=1,
        train__epochs=1, checkpoint__every=0,
    )  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "stalled")}
    return subprocess.Popen(
        [PROGRAM, "train", config], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def bridges(tmp_path) -> list[int]:
    """The processes that send this run's metrics."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if any(word.endswith(b"/_wandb.py") for word in words) and str(tmp_path / "run").encode() in words:
            found.append(int(entry.parent.name))
    return found


def test_a_server_that_stalls_stops_no_step_and_no_signal(tmp_path):
    """It takes nothing: its socket is full after some 100 steps, and the queue before it after some 500 more."""
    process = start_stalled(tmp_path, 100000)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or metrics.stat().st_size < 2 * 2**20:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "; saved" in out, err
    assert time.monotonic() - began < 20
    assert err.count("W&B takes no metrics") == 1 and re.search(r"log.wandb: \d+ messages did not reach W&B", err)
    assert not bridges(tmp_path)


@pytest.mark.slow
def test_its_process_ends_with_a_killed_engine(tmp_path):
    process = start_stalled(tmp_path, 100000)
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert len(bridges(tmp_path)) == 1
    process.kill()
    process.communicate()
    end = time.monotonic() + 30
    while bridges(tmp_path) and time.monotonic() < end:
        time.sleep(0.2)
    assert not bridges(tmp_path)
