"""TensorBoard event files, read by the tensorboard package itself."""

import json
import subprocess

import pytest

from conftest import ROOT

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def write_events(directory, last_step: int, lines: list[dict]) -> None:
    stdin = "".join(json.dumps(line) + "\n" for line in lines)
    program = ROOT / "build" / "metrics_events"
    subprocess.run([program, str(directory), str(last_step)], input=stdin, text=True, check=True)


def read_scalars(directory) -> dict[str, list[tuple[int, float]]]:
    events = event_accumulator.EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def lines_of(steps) -> list[dict]:
    return [{"step": s, "data": {"actor/pg_loss": s / 4, "perf/throughput": 1000.0 * s}} for s in steps]


def test_tensorboard_reads_every_scalar(tmp_path):
    write_events(tmp_path, 0, lines_of(range(1, 300)))
    assert read_scalars(tmp_path) == {
        "actor/pg_loss": [(s, s / 4) for s in range(1, 300)],
        "perf/throughput": [(s, 1000.0 * s) for s in range(1, 300)],
    }


@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_a_resumed_run_shows_each_step_once(tmp_path, cut):
    write_events(tmp_path, 0, lines_of(range(1, 10)))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])  # killed while writing
    write_events(tmp_path, 6, lines_of(range(7, 13)))
    assert read_scalars(tmp_path)["actor/pg_loss"] == [(s, s / 4) for s in range(1, 13)]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_event_ends_what_is_kept(tmp_path):
    write_events(tmp_path, 0, lines_of(range(1, 10)))
    (path,) = tmp_path.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    write_events(tmp_path, 9, lines_of([10]))
    steps = [step for step, _ in read_scalars(tmp_path)["actor/pg_loss"]]
    assert steps[-1] == 10 and steps[:-1] == list(range(1, len(steps)))
