"""What a run shows of its decisions, recomputed: the viewer's tokens, which of them are shown, and the audit."""

import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM

import train_truth
from augur import MaskRule
from train_runs import dump, ids, log_probs_at, make_policy, read_lines, train

ALL = 1000  # responses in the viewer: more than any step here has
RULE = dataclasses.replace(MaskRule.preset("predictive-kl-aggregated"), delta=0.02)
FAR = dict(mask__preset="predictive-kl-aggregated", mask__delta=RULE.delta, train__minibatch=1, train__epochs=2)


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


def test_viewer_and_audit_are_of_the_last_update(tmp_path, policy):
    """Before it the tokens stand as the viewer shows them; after it their divergence has changed as the audit says."""
    updates, figures = dump(tmp_path, policy, train__steps=1, audit__every=1, log__tokens=ALL, **FAR)
    weights = [{k.removeprefix("after."): v for k, v in t.items() if k.startswith("after.")} for _, t in updates[-2:]]
    models = [AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64) for _ in weights]
    for model, state in zip(models, weights, strict=True):
        model.load_state_dict({k: v.double() for k, v in state.items()}, strict=False)
        model.tie_weights()
    shown = {tuple(ids(r)): r for r in read_lines(tmp_path / "run" / "tokens.jsonl")}
    changes = []
    for sample in updates[-1][0]:
        before, after = (log_probs_at(model, sample, 1).tolist() for model in models)
        columns = torch.tensor(sample["support_ids"]).view(-1, sample["columns"]).tolist()
        recorded = torch.tensor(sample["support_logprobs"], dtype=torch.float64).view(-1, sample["columns"]).tolist()
        for t, token in enumerate(shown[tuple(sample["response"])]["tokens"]):
            there = (columns[t], recorded[t], sample["advantage"])
            d, _ = train_truth.divergence_and_change(RULE, before[t], *there)
            assert token["divergence"] == pytest.approx(d, rel=1e-3, abs=1e-6)
            if d > RULE.delta:
                changes.append(train_truth.divergence_and_change(RULE, after[t], *there)[0] - d)
    assert len(changes) > 2 and figures["audit/outside"] == len(changes)
    assert figures["audit/delta_divergence"] == pytest.approx(sum(changes) / len(changes), rel=1e-3)


def masked(response):
    return sum(not token["keep"] for token in response["tokens"])


def test_the_responses_with_most_masked_tokens_are_shown(tmp_path, policy):
    _, everyone = train(tmp_path / "all", policy, train__steps=1, log__tokens=ALL, **FAR)
    _, shown = train(tmp_path / "two", policy, train__steps=1, log__tokens=2, **FAR)
    most = sorted(map(masked, everyone), reverse=True)
    assert most[0] > most[-1] and len(everyone) > 2
    assert [masked(r) for r in shown] == most[:2]


def test_about_twenty_steps_of_a_run_are_shown_and_the_last_among_them(tmp_path, policy):
    _, responses = train(tmp_path, policy, train__steps=41, train__minibatch=0, train__epochs=1, log__tokens=1)
    assert sorted({r["step"] for r in responses}) == [*range(2, 41, 2), 41]
