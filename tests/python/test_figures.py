"""The figures of a step, recomputed from the responses that it learned from."""

import math

import pytest

from train_runs import dump, ids, make_guesser, make_policy, read_lines, train, write_guesses

ALL = 1000  # responses in the viewer: more than any step here has


@pytest.fixture(scope="session")
def guesser(tmp_path_factory):
    return make_guesser(tmp_path_factory.mktemp("guesser"))


@pytest.fixture(scope="session")
def guesses(tmp_path_factory):
    return write_guesses(tmp_path_factory.mktemp("guesses") / "guesses.jsonl")


def test_lengths_rewards_and_loss_are_those_of_the_samples(tmp_path, guesser, guesses):
    """All in one update, on policy: the loss is the mean of the advantages over tokens."""
    changes = dict(data__train=f"[{guesses}]", reward__overlong_buffer=0, train__minibatch=0, train__epochs=1)
    changes |= dict(algorithm__entropy_bonus=1e-9, train__steps=1, log__tokens=ALL)
    [(samples, _)], figures = dump(tmp_path, guesser, **changes)
    lengths = dict(
        prompt_length=[len(s["prompt"]) for s in samples], response_length=[len(s["response"]) for s in samples]
    )
    lengths["critic/advantages"] = [s["advantage"] for s in samples]
    for name, values in lengths.items():
        assert figures[f"{name}/mean"] == pytest.approx(sum(values) / len(values), abs=1e-6)
        assert figures[f"{name}/max"] == pytest.approx(max(values))
        assert figures[f"{name}/min"] == pytest.approx(min(values))
    tokens = [s["advantage"] for s in samples for _ in s["response"]]
    assert len(samples) == 16 and figures["perf/total_num_tokens"] == sum(lengths["prompt_length"]) + len(tokens)
    assert figures["critic/acc/mean"] == sum(s["response"] == [7] for s in samples) / 16 > 0
    assert figures["actor/pg_loss"] == pytest.approx(-sum(tokens) / len(tokens), abs=1e-5) != 0
    shown = {tuple(ids(r)): round(r["advantage"], 4) for r in read_lines(tmp_path / "run" / "tokens.jsonl")}
    assert {(tuple(s["response"]), round(s["advantage"], 4)) for s in samples} >= set(shown.items())


LOSSES = {
    "masked": dict(mask__preset="predictive-kl-aggregated", mask__delta=0.003),
    "cispo": dict(algorithm__loss="cispo", mask__delta=0.003),  # a mask that is not applied
}


@pytest.mark.parametrize("loss", LOSSES)
def test_mask_figures_are_shares_of_the_tokens(tmp_path, loss):
    """A step late, so that the one update begins off policy, with what the viewer shows."""
    changes = dict(rollout__staleness=1, train__steps=2, train__epochs=1, train__minibatch=0, train__lr=0.03)
    changes |= dict(log__tokens=ALL, algorithm__entropy_bonus=1e-9, algorithm__loss_clip_high=0.1) | LOSSES[loss]
    figures, responses = train(tmp_path, make_policy(tmp_path / "policy"), **changes)
    tokens = [token for r in responses if r["step"] == 2 for token in r["tokens"]]

    def mean(values):
        return pytest.approx(math.fsum(values) / len(tokens), rel=1e-4)

    data = figures[2]
    assert data["mask/ratio"] == mean(t["ratio"] for t in tokens)
    assert data["mask/divergence"] == mean(t["divergence"] for t in tokens)
    assert data["mask/outside"] == mean(t["outside"] for t in tokens)
    assert data["mask/masked"] == mean(not t["keep"] for t in tokens)
    assert data["mask/disagree"] == mean(t["disagree"] for t in tokens)
    if loss == "cispo":
        assert data["mask/capped"] == mean(t["ratio"] > 1.1 for t in tokens) and data["mask/capped"] > 0
        assert data["mask/masked"] == 0
    else:
        assert len({data["mask/outside"], data["mask/masked"], data["mask/disagree"], 0.0}) == 4


def test_evaluations_come_when_they_are_due_with_majority_and_answers(tmp_path, guesser, guesses):
    files = dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]")
    changes = dict(eval__every=2, eval__samples=8, train__steps=5, train__lr=0, reward__overlong_buffer=0)
    figures, _ = train(tmp_path, guesser, **files, **changes)
    accuracy = "val-core/guess/acc/mean@8"
    assert [step for step in sorted(figures) if accuracy in figures[step]] == [0, 2, 4, 5]
    majority = figures[0]["val-core/guess/acc/maj@8/mean"]
    assert majority > figures[0][accuracy] and majority * 12 == pytest.approx(round(majority * 12))
    assert figures[0]["val-aux/guess/answered/mean@8"] == 1
