"""augur analyze: its figures follow from its own tokens, and the first order from the real change."""

import csv
import json
import shutil
from collections import defaultdict

import numpy as np
import pytest

from conftest import ROOT, run_augur
from train_runs import write_guesses

RECIPE = ROOT / "recipes" / "quickstart.yaml"
SMALL = ["rollout.prompts=8", "train.minibatch=4", "run.threads=2"]
FLAGS = ["--seeds", 2, "--sequences", 64, "--warmup", 2, "--preceding", 1, "--decompose", 12]


def analyze(run, *overrides, flags=FLAGS, check=True):
    arguments = [f"model.path={ROOT}/models/tiny", f"run.dir={run}", *SMALL, *overrides]
    return run_augur("analyze", RECIPE, *arguments, *flags, check=check)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    run = tmp_path_factory.mktemp("analysis")
    done = analyze(run, "mask.delta=0.002")
    assert "sign accuracy" in done.stdout
    return run


def rows_by_criterion(run, divergence: str) -> dict:
    rows = defaultdict(list)
    with (run / "analysis_tokens.csv").open() as file:
        for row in csv.DictReader(file):
            if row["divergence"] == divergence:
                numbers = {k: float(v) for k, v in row.items() if k not in ("divergence", "criterion")}
                rows[row["criterion"]].append(numbers)
    return rows


def column(rows: list[dict], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])


@pytest.mark.parametrize("divergence", [0, 1, 2])
def test_the_figures_follow_from_the_tokens_in_the_csv(study, divergence):
    result = json.loads((study / "analysis.json").read_text())["divergences"][divergence]
    rows = rows_by_criterion(study, result["divergence"])
    names = [c["name"] for c in result["criteria"]]
    expected = ["ratio", "predicted-aggregated", "predicted-uniform", "predicted-exact", "predicted-full"]
    assert names == expected and len(rows["ratio"]) == result["outside_total"] > 20
    seeds, ratio = column(rows["ratio"], "seed"), rows["ratio"]
    for criterion in result["criteria"]:
        here = rows[criterion["name"]]
        keep, change = column(here, "keep") > 0, column(here, "change")
        outward = column(here, "advantage") * column(here, "direction")
        assert (keep == ~(outward > 0)).all()
        unmasked = column(here, "unmasked_change")
        counted = (outward != 0) & (unmasked != 0)
        right = np.sign(outward) == np.sign(unmasked)
        assert criterion["prediction"]["counted"] == counted.sum()
        by_seed = [right[counted & (seeds == s)].mean() for s in np.unique(seeds)]
        assert criterion["prediction"]["sign_accuracy"]["mean"] == pytest.approx(np.mean(by_seed), abs=1e-9)
        means = np.array([change[seeds == s].mean() for s in np.unique(seeds)])
        base = np.array([unmasked[seeds == s].mean() for s in np.unique(seeds)])
        control = criterion["control"]
        assert control["change"]["mean"] == pytest.approx(means.mean(), rel=1e-5, abs=1e-12)
        assert control["minus_unmasked"]["mean"] == pytest.approx((means - base).mean(), rel=1e-4, abs=1e-9)
        if criterion["name"] == "ratio":
            continue
        ratio_keep, ratio_change = column(ratio, "keep") > 0, column(ratio, "change")
        disagree = keep != ratio_keep
        figures = criterion["disagreements"]
        assert figures["total"] == disagree.sum()
        if (disagree & keep).any():
            assert figures["contraction"] == pytest.approx((change[disagree & keep] < 0).mean())
        if (disagree & ratio_keep).any():
            assert figures["ratio_contraction"] == pytest.approx((ratio_change[disagree & ratio_keep] < 0).mean())


QUICK = ["--seeds", 1, "--sequences", 16, "--warmup", 0, "--preceding", 0, "--decompose", 0, "--divergences", "kl"]


def test_a_seed_is_measured_anew_where_the_model_or_the_data_has_changed(tmp_path):
    model, data, run = tmp_path / "model", write_guesses(tmp_path / "data.jsonl"), tmp_path / "run"
    shutil.copytree(ROOT / "models" / "tiny", model)
    overrides = [f"model.path={model}", f"data.train=[{data}]", "mask.delta=1e-9", "train.steps=4"]

    def records():
        analyze(run, *overrides, flags=QUICK)
        return len(list(run.glob("seeds/*/seed-0.json")))

    assert records() == records() == 1
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert records() == 2
    data.write_text(data.read_text().replace("1 2 =", "2 1 ="))
    assert records() == 3


@pytest.mark.slow
def test_seeds_are_kept_shared_out_and_added_to(study, tmp_path):
    first = [study / name for name in ("analysis.json", "analysis_tokens.csv")]
    flags = ["--seeds", 1, *FLAGS[2:]]
    analyze(tmp_path, "mask.delta=0.002", flags=flags)
    (record,) = tmp_path.glob("seeds/*/seed-0.json")
    measured = record.stat().st_mtime_ns
    done = analyze(tmp_path, "mask.delta=0.002", flags=[*FLAGS, "--workers", 2])
    assert record.stat().st_mtime_ns == measured and record.with_name("seed-1.json").exists()
    assert "left out" not in done.stdout
    for path in first:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    analyze(tmp_path, "mask.delta=0.003", flags=flags)  # other settings, other records
    assert len(list(tmp_path.glob("seeds/*"))) == 2
    record.write_text('{"sequences": 64}')
    done = analyze(tmp_path, "mask.delta=0.002", check=False)
    assert done.returncode == 2 and "seed-0.json" in done.stderr and "remove it" in done.stderr


def test_ratio_direction_and_proximity_are_what_they_are_called(study):
    for row in rows_by_criterion(study, "kl")["ratio"]:
        assert row["direction"] == pytest.approx(row["ratio"] - 1, abs=1e-6)
        assert row["d_before"] > 0.002


@pytest.mark.slow
def test_the_first_order_of_the_whole_update_is_the_real_change_where_steps_are_small(tmp_path):
    # Large steps first, so that D is large; then the schedule ends and the measured update is small.
    schedule = ["train.lr=5e-3", "train.schedule=cosine", "train.steps=4", "train.min_lr_ratio=0.001"]
    schedule += ["train.warmup_steps=0", "rollout.staleness=4", "model.precision=fp32", "mask.delta=0.005"]
    analyze(tmp_path, *schedule)
    result = json.loads((tmp_path / "analysis.json").read_text())
    kl = result["divergences"][0]
    parts = np.array(kl["decomposition"]["points"])
    total, realized = parts[:, 4], parts[:, 5]
    np.testing.assert_allclose(parts[:, :4].sum(1), total, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(total, realized, rtol=0.1, atol=0.03 * np.abs(realized).max())
    assert kl["decomposition"]["oracle_sign_accuracy"] > 0.9
    # A token's own step moves its divergence the way its exact derivative says, mostly.
    assert kl["decomposition"]["own_effect_sign_accuracy"]["predicted-exact"] > 0.7


@pytest.mark.slow
def test_the_first_order_of_every_divergence_is_its_real_change(tmp_path):
    schedule = ["train.lr=5e-3", "train.schedule=cosine", "train.steps=4", "train.min_lr_ratio=0.001"]
    schedule += ["train.warmup_steps=0", "rollout.staleness=4", "model.precision=fp32", "mask.delta=0.005"]
    analyze(tmp_path, *schedule, flags=[*FLAGS, "--divergences", "reverse_kl,tv"])
    found = json.loads((tmp_path / "analysis.json").read_text())["divergences"]
    assert [d["divergence"] for d in found] == ["reverse_kl", "tv"]
    for study in found:
        parts = np.array(study["decomposition"]["points"])
        np.testing.assert_allclose(parts[:, 4], parts[:, 5], rtol=0.1, atol=0.05 * np.abs(parts[:, 5]).max())


@pytest.mark.parametrize(
    ("names", "message"), [("kl,kl", "twice"), ("ratio", "unknown divergence 'ratio'"), ("k", "did you mean")]
)
def test_divergences_are_named(tmp_path, names, message):
    done = analyze(tmp_path, flags=["--divergences", names], check=False)
    assert done.returncode == 2 and "--divergences" in done.stderr and message in done.stderr


def test_no_token_outside_is_said_with_what_to_change(tmp_path):
    flags = ["--seeds", 1, "--sequences", 16, "--warmup", 0, "--preceding", 0]
    done = analyze(tmp_path, "mask.delta=50", flags=flags, check=False)
    assert done.returncode == 2
    assert "no token is outside" in done.stderr and "mask.delta" in done.stderr and "fp8_rollout" in done.stderr
    assert len(done.stderr.strip().splitlines()[-1].split("augur: ")) == 2


def test_seeds_that_another_process_is_at_are_said_to_be(tmp_path):
    analyze(tmp_path, "mask.delta=1e-9", flags=QUICK)
    (record,) = tmp_path.glob("seeds/*/seed-0.json")
    record.unlink()
    (record.parent / "claims" / "seed-0.1").write_text("elsewhere - - 1")
    done = analyze(tmp_path, "mask.delta=1e-9", flags=QUICK, check=False)
    assert done.returncode == 2 and "no seed has been measured yet: other processes are at them" in done.stderr
    assert "no token is outside" not in done.stderr
    done = analyze(tmp_path, "mask.delta=1e-9", flags=["--seeds", 2, *QUICK[2:]])
    assert "1 of 2 seeds are left out: other processes are at them" in done.stdout


@pytest.mark.parametrize("override", ["algorithm.loss=gspo", "algorithm.entropy_bonus=0.1", "rollout.support=0"])
def test_a_loss_that_is_not_the_masked_surrogate_is_refused(tmp_path, override):
    done = analyze(tmp_path, override, "mask=clip", check=False)
    assert done.returncode == 2 and override.split("=")[0].split(".")[0] in done.stderr


def test_a_run_is_not_replaced_by_its_analysis(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.yaml").write_text("mine")
    done = analyze(tmp_path, check=False)
    assert done.returncode == 2 and f"{tmp_path}: holds a run" in done.stderr
    assert f"run.dir={tmp_path}-analysis" in done.stderr and (tmp_path / "config.yaml").read_text() == "mine"


@pytest.mark.parametrize("flag", ["--sequences", "--seeds", "--warmup", "--preceding", "--decompose"])
def test_numbers_beyond_reason_are_refused(tmp_path, flag):
    done = analyze(tmp_path / "new", flags=[flag, 2**63 - 1], check=False)
    assert done.returncode == 2 and "is not within" in done.stderr and not (tmp_path / "new").exists()


def test_files_of_the_users_own_are_not_replaced(tmp_path):
    (tmp_path / "config.yaml").write_text("mine")
    done = analyze(tmp_path, check=False)
    assert done.returncode == 2 and "this one would replace: config.yaml" in done.stderr
    assert (tmp_path / "config.yaml").read_text() == "mine"
