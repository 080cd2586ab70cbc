"""What scores mean: one verifier by the name auto, answers found, failures, minibatches and equal groups."""

import json

import pytest
import torch
from safetensors.torch import load_file

from conftest import ROOT, run_augur
from train_runs import make_moe_policy, make_policy, read_metrics, write_config

TINY = ROOT / "models" / "tiny"


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


def small_config(tmp_path, policy, name="run", **changes):
    settings = dict(rollout__prompts=2, rollout__group=2, train__minibatch=1, train__epochs=1, train__steps=1)
    settings |= dict(reward__verifier="auto", reward__overlong_buffer=0, eval__samples=2)
    return write_config(tmp_path / f"{name}.yaml", policy, tmp_path / name, **(settings | changes))


def sorting_config(tmp_path, name="run", **changes):
    """The bundled model on its task: about a third of its responses are right, so groups are mixed or equal."""
    settings = {
        "model.path": TINY,
        "data.train": "[task:sort:count=512:seed=11]",
        "rollout.max_tokens": 16,
        "rollout.prompts": 16,
        "rollout.group": 4,
        "train.minibatch": 4,
        "train.epochs": 1,
        "train.steps": 1,
        "train.lr": 1e-4,
        "train.eps": 1e-8,
        "reward.overlong_buffer": 0,
    }
    settings = {key.replace(".", "__"): value for key, value in settings.items()} | changes
    return write_config(tmp_path / f"{name}.yaml", TINY, tmp_path / name, **settings)


def rows(path, *objects):
    path.write_text("".join(json.dumps(row) + "\n" for row in objects))
    return path


@pytest.fixture
def sources(tmp_path):
    """A file with a row of every data source that auto knows, and one that it does not."""
    named = {
        "openai/gsm8k": ("4", "gsm8k"),
        "math_dapo": ("4", "math_dapo"),
        "AIME2024": ("4", "math_dapo"),
        "lighteval/MATH": ("4", "math_strict"),
        "sort": ("3 4", "exact"),
        "arithmetic": ("4", "gsm8k_flexible"),
        "letters": ("a", "exact"),
        "puzzles": ({"numbers": [1, 2], "target": 3}, "countdown"),
    }
    objects = [{"prompt": "1 2 =", "answer": answer, "data_source": name} for name, (answer, _) in named.items()]
    return rows(tmp_path / "sources.jsonl", *objects), {name: verifier for name, (_, verifier) in named.items()}


def test_auto_is_one_verifier_for_training_evaluation_and_prompts(tmp_path, policy, sources):
    data, expected = sources
    lines = [json.loads(line) for line in run_augur("prompts", data, "--verifier", "auto").stdout.splitlines()]
    assert {line["data_source"]: line["verifier"] for line in lines} == expected

    out = tmp_path / "out.json"
    done = run_augur("eval", policy, "--data", data, "--samples", 1, "--max-tokens", 4, "--output", out)
    report = json.loads(out.read_text())
    assert {name: figures["verifier"] for name, figures in report["sources"].items()} == expected
    table = [line.split() for line in done.stdout.splitlines()[1:]]
    assert {line[0]: line[1] for line in table if line[0] != "all"} == expected

    config = small_config(tmp_path, policy, data__train=f"[{data}]", eval__files=f"[{data}]", reward__error_score=0)
    done = run_augur("train", config, "rollout.prompts=8")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["verifiers"] == expected
    for name, verifier in expected.items():
        assert f"{name} by {verifier}" in done.stderr


def test_wrong_and_without_an_answer_are_different_news(tmp_path, policy):
    """Under gsm8k no response of this model holds ####; under gsm8k_flexible nearly all hold a number."""
    data = rows(tmp_path / "gsm8k.jsonl", *[{"question": f"{i} {i + 1} =", "answer": "999999"} for i in range(6)])
    figures = {}
    for verifier in ("auto", "gsm8k_flexible"):
        out, responses = tmp_path / "out.json", tmp_path / "responses.jsonl"
        flags = ["--samples", 4, "--max-tokens", 8, "--output", out, "--responses", responses, "--verifier", verifier]
        done = run_augur("eval", policy, "--data", data, *flags)
        figures[verifier] = json.loads(out.read_text())["sources"]["gsm8k"]
        lines = [json.loads(line) for line in responses.read_text().splitlines()]
        assert figures[verifier]["answered"] == pytest.approx(sum(line["answered"] for line in lines) / len(lines))
        if verifier == "gsm8k_flexible":
            assert [line["answered"] for line in lines] == [
                any(c in "0123456789," for c in r["response"]) for r in lines
            ]
        assert "answered" in done.stdout.splitlines()[0]
    assert figures["auto"]["verifier"] == "gsm8k" and figures["gsm8k_flexible"]["verifier"] == "gsm8k_flexible"
    assert figures["auto"]["avg@4"] == figures["gsm8k_flexible"]["avg@4"] == 0
    assert figures["auto"]["answered"] == 0 and figures["gsm8k_flexible"]["answered"] > 0.9

    config = small_config(tmp_path, policy, data__train=f"[{data}]", eval__files=f"[{data}]")
    run_augur("train", config, "log.console=false")
    metrics = [line["data"] for line in read_metrics(tmp_path / "run")]
    assert [m["val-aux/gsm8k/answered/mean@2"] for m in metrics] == [0, 0]
    assert metrics[1]["critic/answered/mean"] == 0


def test_prompts_that_fail_are_counted_alike_in_training_and_eval(tmp_path, policy):
    good = [{"prompt": f"{i} {i + 1} =", "answer": f"{i} {i + 1}", "data_source": "sort"} for i in range(4)]
    bad = [
        {"prompt": "1 2 =", "answer": ["a", "list"], "data_source": "sort"},
        {"prompt": "", "answer": "1", "data_source": "sort"},
        {"prompt": "3 4 =", "answer": {"numbers": "x"}, "data_source": "puzzles"},
    ]
    data = rows(tmp_path / "rows.jsonl", *good, *bad)
    out = tmp_path / "out.json"
    done = run_augur("eval", policy, "--data", data, "--samples", 2, "--max-tokens", 8, "--output", out, check=False)
    report = json.loads(out.read_text())
    assert done.returncode == 2 and len(report["failed"]) == 3
    assert done.stderr.splitlines()[0].startswith("chat format: ") and len(done.stderr.splitlines()) == 1 + 3
    for line, row in zip(report["failed"], (5, 6, 7), strict=True):
        assert line.startswith(f"{data}:{row}: ")
    counts = {name: (f["prompts"], f["failed"]) for name, f in report["sources"].items()}
    assert counts == {"puzzles": (0, 1), "sort": (4, 1), "rows": (0, 1)}
    assert report["overall"]["prompts"] == 4

    config = small_config(tmp_path, policy, eval__files=f"[{data}]")
    done = run_augur("train", config)
    for line in report["failed"]:
        assert done.stderr.count(line) == 1
    for line in read_metrics(tmp_path / "run"):
        failed = {name: line["data"].get(f"val-aux/{name}/failed") for name in counts}
        assert failed == {name: count for name, (_, count) in counts.items()}
        assert "val-core/sort/acc/mean@2" in line["data"] and "val-core/puzzles/acc/mean@2" not in line["data"]


def test_an_evaluation_without_a_row_that_can_be_scored_stops_the_run_before_any_step(tmp_path, policy):
    data = rows(tmp_path / "rows.jsonl", {"prompt": "1 2 =", "answer": ["a", "list"]}, {"prompt": "3 =", "answer": []})
    config = small_config(tmp_path, policy, eval__files=f"[{data}]", eval__at_start="false", log__console="false")
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and f"{data}:1: " in done.stderr and "not one of 2 rows" in done.stderr
    assert done.stderr.count("\n") == 2 and done.stderr.count("warning: ") == 1  # an empty answer
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("bad", "max_errors", "stops"),
    [(4, 0.5, True), (4, 1, True), (2, 0.5, False), (3, 0.5, True), (1, 0, True), (3, 0.75, False), (0, 0, False)],
)
def test_a_verifier_that_fails_too_often_stops_the_run_with_row_and_reason(tmp_path, policy, bad, max_errors, stops):
    answers = ["1 2"] * (4 - bad) + [["not", "text"]] * bad
    data = rows(tmp_path / "rows.jsonl", *[{"prompt": f"{i} 9 =", "answer": a} for i, a in enumerate(answers)])
    changes = dict(data__train=f"[{data}]", data__shuffle="false", rollout__prompts=4, reward__max_errors=max_errors)
    done = run_augur("train", small_config(tmp_path, policy, **changes), "log.console=false", check=False)
    if stops:
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert f"{data}:{5 - bad}: " in done.stderr and "expected text or a number" in done.stderr
        assert ("not one of" if bad == 4 else "reward.max_errors") in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert read_metrics(tmp_path / "run")[-1]["data"]["reward/errors"] == 2 * bad


def dumped(tmp_path, config, *changes):
    """The samples of every update of the first step, and the tensors after it."""
    run_augur("train", config, "--dump-step", tmp_path / "dump", "log.console=false", *changes)
    updates = []
    while (file := tmp_path / "dump" / f"update_{len(updates)}.jsonl").exists():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        updates.append((lines, load_file(file.with_suffix(".safetensors"))))
    return updates


def test_dropped_groups_leave_minibatches_of_near_equal_size(tmp_path):
    left_over = 0
    for seed in range(3):
        config = sorting_config(tmp_path, f"s{seed}", algorithm__skip_equal_groups="true", run__seed=seed)
        directory = tmp_path / f"d{seed}"
        directory.mkdir()
        groups = [len({s["key"] for s in samples}) for samples, _ in dumped(directory, config)]
        assert 0 < sum(groups) < 16 and len(groups) == -(-sum(groups) // 4)
        assert max(groups) - min(groups) <= 1 and groups == sorted(groups, reverse=True)
        left_over += sum(groups) % 4 != 0
    assert left_over > 0, "no seed left a remainder: choose others"


def test_equal_groups_are_told_by_the_score_before_overlong_shaping(tmp_path, policy):
    """This model is never right, and its responses differ in length: shaping alone tells them apart."""
    changes = dict(rollout__prompts=4, rollout__group=4, reward__overlong_buffer=8, reward__verifier="exact")
    config = small_config(tmp_path, policy, algorithm__skip_equal_groups="true", **changes)
    run_augur("train", config, "log.console=false")
    last = read_metrics(tmp_path / "run")[-1]["data"]
    assert last["critic/rewards/min"] < last["critic/rewards/max"] and last["critic/score/max"] == 0
    assert last["rollout/equal_groups"] == 1 and last["actor/updates"] == 0
    config = small_config(tmp_path, policy, "plain", **changes)
    run_augur("train", config, "log.console=false")
    assert read_metrics(tmp_path / "plain")[-1]["data"]["actor/updates"] == 4
    config = small_config(tmp_path, policy, "dynamic", algorithm__dynamic_sampling="true", **changes)
    run_augur("train", config, "algorithm.max_refills=2", "log.console=false")
    last = read_metrics(tmp_path / "dynamic")[-1]["data"]
    assert last["rollout/groups"] == 0 and last["rollout/refills"] == 2


def test_sequences_without_an_advantage_have_no_part_in_the_gradient(tmp_path):
    """Summed over tokens, equal groups add nothing to the loss: with or without them the update has the same bits."""
    updates = []
    for skip in ("true", "false"):
        directory = tmp_path / skip
        directory.mkdir()
        changes = dict(algorithm__aggregation="token-sum", train__minibatch=16, algorithm__skip_equal_groups=skip)
        updates.append(dumped(directory, sorting_config(directory, **changes)))
    ((fewer, skipped),), ((all_samples, kept),) = updates
    assert 0 < len(fewer) < len(all_samples) == 64
    assert [s for s in all_samples if s["advantage"] != 0] == fewer
    assert skipped.keys() == kept.keys()
    for name, tensor in skipped.items():
        assert torch.equal(tensor, kept[name]), name


def test_a_minibatch_without_any_advantage_still_decays_and_counts(tmp_path, policy):
    """Zeros are a gradient, too: AdamW goes on with its averages and its weight decay."""
    config = small_config(tmp_path, policy, train__weight_decay=0.1, reward__verifier="exact")
    ((_, first), (_, second)) = dumped(tmp_path, config, "train.lr=0.01")
    before = load_file(tmp_path / "dump" / "before" / "model.safetensors")
    for name, tensor in before.items():
        assert not first["gradient." + name].any()
        torch.testing.assert_close(first["after." + name], tensor * (1 - 0.001))
        torch.testing.assert_close(second["after." + name], tensor * (1 - 0.001) ** 2)


TERMS = {
    "entropy": (make_policy, dict(algorithm__entropy_bonus=0.01)),
    "reference": (make_policy, dict(algorithm__kl_coef=0.1, algorithm__kl_estimator="k1")),
    "load balance": (make_moe_policy, dict(algorithm__load_balance_coef=0.1)),
}


@pytest.mark.parametrize("term", TERMS)
def test_other_terms_of_the_loss_keep_sequences_without_an_advantage(tmp_path, term):
    make, changes = TERMS[term]
    config = small_config(tmp_path, make(tmp_path / "model"), reward__verifier="exact", **changes)
    ((samples, tensors), _) = dumped(tmp_path, config)
    assert all(s["advantage"] == 0 for s in samples)
    assert tensors["gradient.model.layers.0.input_layernorm.weight"].any()
