"""What `augur train` draws, learns from and evaluates, held to a second account of each: epochs, refills, dropped
responses, shaping, held-out samples."""

import json
import math

import pytest
from safetensors.torch import load_file, save_file

from conftest import run_augur
from train_runs import (
    ALL,
    END_TOKENS,
    dump,
    ids,
    make_guesser,
    make_policy,
    read_lines,
    read_metrics,
    small_config,
    train,
    without_times,
    write_guesses,
)

STILL = dict(train__lr=0, train__weight_decay=0, train__epochs=1, train__minibatch=0, log__tokens=ALL)
# A term for every token, so that responses without an advantage take part too.
EVERYONE = dict(algorithm__entropy_bonus=1e-6, reward__overlong_buffer=0)


@pytest.fixture(scope="session")
def guesser(tmp_path_factory):
    return make_guesser(tmp_path_factory.mktemp("guesser"))


@pytest.fixture(scope="session")
def guesses(tmp_path_factory):
    return write_guesses(tmp_path_factory.mktemp("guesses") / "guesses.jsonl")


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


# Draws.


@pytest.mark.parametrize("shuffle", ["true", "false"])
def test_each_epoch_draws_new_responses_to_the_same_prompts(tmp_path, policy, shuffle):
    changes = STILL | dict(data__train="[task:sort:numbers=4:count=4:seed=3]", train__steps=2, data__shuffle=shuffle)
    _, responses = train(tmp_path, policy, **changes)
    by_step = [{r["prompt"]: [] for r in responses if r["step"] == step} for step in (1, 2)]
    for response in responses:
        by_step[response["step"] - 1][response["prompt"]].append(ids(response))
    assert by_step[0].keys() == by_step[1].keys() and len(by_step[0]) == 4
    for prompt, drawn in by_step[0].items():
        assert drawn != by_step[1][prompt]


def test_an_epoch_has_every_prompt_once_and_the_next_another_order(tmp_path, guesser, guesses):
    changes = STILL | EVERYONE | dict(data__train=f"[{guesses}]", rollout__group=2, train__steps=6)
    _, responses = train(tmp_path, guesser, **changes)
    order = [r["prompt"].strip() for r in responses[::2]]
    every = {row["prompt"] for row in read_lines(guesses)}
    assert set(order[:12]) == set(order[12:]) == every and len(order) == 24
    assert order[:12] != order[12:]
    _, responses = train(tmp_path / "other", guesser, run__seed=1, **changes)
    assert [r["prompt"].strip() for r in responses[::2]] != order


def account(responses, step, prompts, group):
    """The groups of a step in the order of their draws: lists of (prompt, its source, tokens, reward)."""
    here = [(r["prompt"], r["data_source"], ids(r), r["reward"]) for r in responses if r["step"] == step]
    assert len(here) == prompts * group
    return [here[i : i + group] for i in range(0, len(here), group)]


def is_mixed(group):
    return len({reward for *_, reward in group}) > 1


@pytest.mark.parametrize("max_refills", [1, 10])
def test_dynamic_sampling_takes_the_next_mixed_groups_and_counts_what_it_drew(tmp_path, guesser, guesses, max_refills):
    """Draws depend on seed and place alone, so that a plain run shows every group there is to draw from."""
    prompts, group = 2, 2
    rows = tmp_path / "rows.jsonl"  # each of a source of its own
    sources = [row | {"data_source": f"guess {i}"} for i, row in enumerate(read_lines(guesses))]
    rows.write_text("".join(json.dumps(row) + "\n" for row in sources))
    changes = STILL | EVERYONE | dict(data__train=f"[{rows}]", rollout__prompts=prompts, rollout__group=group)
    plain, responses = train(tmp_path / "plain", guesser, train__steps=28, **changes)
    drawn = [g for step in sorted(plain) for g in account(responses, step, prompts, group)]
    assert 0.2 < sum(map(is_mixed, drawn)) / len(drawn) < 0.9
    figures, responses = train(
        tmp_path / "dynamic", guesser, train__steps=8, algorithm__dynamic_sampling="true",
        algorithm__max_refills=max_refills, **changes,
    )  # fmt: skip
    place = 0
    refilled = surplus = 0
    for step in range(1, 9):
        seen, kept, refills = [], [], 0
        while True:
            new = drawn[place : place + prompts]
            place += prompts
            seen += new
            kept += [g for g in new if is_mixed(g)]
            if len(kept) >= prompts or refills >= max_refills:
                break
            refills += 1
        surplus += len(kept) > prompts
        kept = kept[:prompts]
        refilled += refills
        data = figures[step]
        assert data["rollout/refills"] == refills
        assert data["rollout/groups"] == len(kept)
        assert data["rollout/equal_groups"] == pytest.approx(sum(not is_mixed(g) for g in seen) / len(seen))
        if kept:
            assert account(responses, step, len(kept), group) == kept
            rewards = [reward for g in kept for *_, reward in g]
            assert data["critic/score/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert refilled > 1 and surplus > 0


def test_an_end_token_at_the_limit_ends_a_response_by_itself(tmp_path, policy):
    out = tmp_path / "out.jsonl"
    run_augur("generate", policy, "--prompt", "1 2 =", "--max-tokens", 2, "--samples", 200, "--output", out)
    at_limit = [r for r in read_lines(out) if len(r["tokens"]) == 2]
    reasons = {(r["tokens"][-1] in END_TOKENS, r["finish_reason"]) for r in at_limit}
    assert reasons == {(True, "eos"), (False, "length")}


def test_a_stop_text_ends_responses_in_training_and_evaluation(tmp_path, guesser, guesses):
    changes = STILL | dict(data__train=f"[{guesses}]", rollout__stop='["7"]', train__steps=1, reward__overlong_buffer=0)
    (tmp_path / "free").mkdir()
    no_end = tmp_path / "model"
    no_end.mkdir()
    for file in guesser.iterdir():
        (no_end / file.name).write_bytes(file.read_bytes())
    (no_end / "generation_config.json").write_text(json.dumps({"eos_token_id": [271]}))
    evaluation = dict(eval__files=f"[{guesses}]", eval__samples=8, eval__every=1, eval__at_start="false")
    figures, responses = train(tmp_path / "stop", no_end, **changes, **evaluation)
    stopped = 0
    for response in responses:
        text = "".join(token["text"] for token in response["tokens"])
        assert ("7" in text) == (response["finish"] == "stop")
        assert "7" not in "".join(token["text"] for token in response["tokens"][:-1])
        stopped += "7" in text
    assert stopped > 4
    # Exact answers are possible only where a response ends at the stop text.
    assert figures[1]["val-core/guess/acc/mean@8"] > 0.1
    figures, _ = train(tmp_path / "free", no_end, **(changes | evaluation | dict(rollout__stop="[]")))
    assert figures[1]["val-core/guess/acc/mean@8"] == 0


# What is learned from.


def test_dropping_truncated_responses_leaves_exactly_those_out(tmp_path, policy):
    changes = dict(train__minibatch=4, train__epochs=1, algorithm__entropy_bonus=1e-6)
    [(whole, _)], figures = dump(tmp_path / "whole", policy, **changes)
    [(cut, _)], _ = dump(tmp_path / "cut", policy, algorithm__drop_truncated="true", **changes)
    ended = [s for s in whole if s["response"][-1] in END_TOKENS]
    assert 0 < len(ended) < len(whole)
    assert [s["response"] for s in cut] == [s["response"] for s in ended]
    assert [s["advantage"] for s in cut] == [s["advantage"] for s in ended]  # of the whole group
    assert figures["response_length/clip_ratio"] == pytest.approx(1 - len(ended) / len(whole))
    assert figures["response_length/mean"] == pytest.approx(sum(len(s["response"]) for s in whole) / len(whole))


def test_a_step_whose_responses_are_all_left_out_says_so(tmp_path, policy):
    changes = dict(rollout__max_tokens=1, reward__overlong_buffer=0, log__console="true")
    config = small_config(tmp_path, policy, algorithm__skip_equal_groups="true", **changes)
    said = run_augur("train", config, "train.steps=2").stderr
    assert said.count("step 1 made no update: every response was left out (algorithm.skip_equal_groups)") == 1
    assert "step 2 made no update" not in said
    assert [line["data"].get("actor/updates") for line in read_metrics(tmp_path / "run")][-2:] == [0, 0]


def test_a_step_that_dynamic_sampling_left_empty_says_why_and_shows_no_figures_of_nothing(tmp_path, policy):
    changes = dict(rollout__max_tokens=1, reward__overlong_buffer=0, log__console="true", eval__files="[]")
    changes |= dict(algorithm__dynamic_sampling="true", algorithm__max_refills=2, train__steps=1)
    said = run_augur("train", small_config(tmp_path, policy, **changes)).stderr
    assert "step 1 made no update: every response was left out (algorithm.dynamic_sampling, 2 refills)" in said
    assert "no update" in said.splitlines()[-1] and "nan" not in said


def test_skipping_equal_groups_leaves_exactly_those_out(tmp_path, guesser, guesses):
    changes = EVERYONE | dict(data__train=f"[{guesses}]", rollout__prompts=8, rollout__group=2, train__minibatch=8)
    [(whole, _)], _ = dump(tmp_path / "whole", guesser, train__epochs=1, **changes)
    [(cut, _)], _ = dump(tmp_path / "cut", guesser, train__epochs=1, algorithm__skip_equal_groups="true", **changes)
    mixed = [s for s in whole if s["advantage"] != 0]
    assert 0 < len(mixed) < len(whole)
    assert [(s["key"], s["response"]) for s in cut] == [(s["key"], s["response"]) for s in mixed]


POISON = 200


def make_poisoned(guesser, model):
    """After one certain token, which is drawn often, the activations overflow: what follows fails, what comes before
    is there. The last width is 0 for all other tokens, and a norm that multiplies it by 1e30 leaves them alone."""
    width = 31
    model.mkdir()
    for file in guesser.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    tensors = load_file(guesser / "model.safetensors")
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor[width] = 0
    tensors["model.embed_tokens.weight"][:, width] = 0
    tensors["model.embed_tokens.weight"][POISON, width] = 1
    tensors["model.layers.0.post_attention_layernorm.weight"][width] = 1e30
    tensors["lm_head.weight"][POISON, 0] = 1.2
    save_file(tensors, model / "model.safetensors")
    return model


def test_responses_that_failed_midway_are_counted_and_not_learned_from(tmp_path, guesser, guesses):
    model = make_poisoned(guesser, tmp_path / "model")
    changes = dict(data__train=f"[{guesses}]", train__epochs=1, train__minibatch=4, algorithm__entropy_bonus=1e-6)
    [(samples, tensors)], figures = dump(tmp_path / "run", model, **changes)
    failed = figures["rollout/failed"]
    assert 0 < failed < 16 and len(samples) == 16 - failed
    assert not any(POISON in s["response"][:-1] for s in samples)
    assert figures["actor/skipped_updates"] == 0 and math.isfinite(tensors["grad_norm"][0])


def test_failures_of_earlier_refills_are_not_those_of_this_one(tmp_path, guesser):
    """Every other prompt fails, and no group is mixed: each refill has as many failures as responses."""
    model, rows = make_poisoned(guesser, tmp_path / "model"), tmp_path / "rows.jsonl"
    prompts = [f"{POISON} =" if i % 2 else f"{i} =" for i in range(12)]
    rows.write_text("".join(json.dumps({"prompt": p, "answer": "no"}) + "\n" for p in prompts))
    changes = dict(data__train=f"[{rows}]", data__shuffle="false", rollout__max_tokens=1, reward__overlong_buffer=0)
    changes |= dict(algorithm__dynamic_sampling="true", algorithm__max_refills=2, train__steps=1)
    figures, _ = train(tmp_path / "run", model, **changes)
    assert figures[1]["rollout/failed"] == 24 and figures[1]["rollout/refills"] == 2


def test_what_waits_is_the_same_after_a_resume(tmp_path, guesser):
    """Scores that failed, responses that failed or were cut, refills: all that a step says of what it learned from."""
    model, rows = make_poisoned(guesser, tmp_path / "model"), tmp_path / "rows.jsonl"
    answers = [["no", "text"] if i % 4 == 1 else "7" if i % 4 else "7 9" for i in range(12)]
    rows.write_text("".join(json.dumps({"prompt": f"{i} =", "answer": a}) + "\n" for i, a in enumerate(answers)))
    changes = dict(data__train=f"[{rows}]", data__shuffle="false", rollout__staleness=2, rollout__max_tokens=2)
    changes |= dict(algorithm__dynamic_sampling="true", algorithm__max_refills=1, train__lr=0, train__weight_decay=0)
    changes |= dict(reward__max_errors=0.9, reward__overlong_buffer=0, checkpoint__every=2)
    straight, _ = train(tmp_path / "straight", model, train__steps=4, **changes)
    train(tmp_path / "resumed", model, train__steps=2, **changes)
    train(tmp_path / "resumed", model, train__steps=4, **changes)
    for name in ("reward/errors", "rollout/refills", "rollout/failed", "rollout/equal_groups", "critic/acc/mean",
                 "critic/answered/mean", "response_length/clip_ratio"):  # fmt: skip
        assert any(straight[step][name] > 0 for step in (3, 4)), name
    one, other = (without_times(read_metrics(tmp_path / name / "run")) for name in ("straight", "resumed"))
    assert one == other
    batches = [[line["data"]["perf/decode_batch"] for line in read_metrics(tmp_path / name / "run")]
               for name in ("straight", "resumed")]  # fmt: skip
    assert batches[0] == batches[1] and all(batches[0])


@pytest.mark.parametrize("penalty", [0.5, 2.0])
def test_overlong_shaping_falls_from_the_buffer_to_the_limit(tmp_path, guesser, guesses, penalty):
    changes = STILL | dict(data__train=f"[{guesses}]", train__steps=1, algorithm__entropy_bonus=1e-6)
    shaped = dict(reward__overlong_buffer=3, reward__overlong_penalty=penalty, rollout__max_tokens=8)
    figures, responses = train(tmp_path, guesser, **changes, **shaped)
    lengths = []
    for response in responses:
        right = ids(response) == [7]
        length = len(response["tokens"])
        assert response["reward"] == pytest.approx(right - penalty * max(0, length - 5) / 3)
        lengths.append(length)
    assert max(lengths) > 5 and len(responses) == 16
    rewards = [r["reward"] for r in responses]
    assert figures[1]["critic/rewards/min"] == pytest.approx(min(rewards))
    assert figures[1]["critic/rewards/mean"] == pytest.approx(sum(rewards) / 16)
    assert figures[1]["critic/score/mean"] == pytest.approx(sum(ids(r) == [7] for r in responses) / 16)


# Evaluation.

EVALUATION = dict(eval__every=1, eval__samples=8, train__steps=2, reward__overlong_buffer=0)


def evaluations(figures, name="mean@8"):
    return [figures[step][f"val-core/guess/acc/{name}"] for step in sorted(figures)]


def test_evaluations_draw_the_same_at_every_step_and_by_the_seed(tmp_path, guesser, guesses):
    changes = STILL | EVALUATION | dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]", log__tokens=0)
    found = set()
    for seed in (0, 1, 2):
        figures, _ = train(tmp_path / str(seed), guesser, run__seed=seed, **changes)
        here = evaluations(figures)
        assert len(here) == 3 and len(set(here)) == 1
        found.add(here[0])
    assert len(found) > 1


def test_evaluations_draw_apart_from_training_and_from_prompt_to_prompt(tmp_path, guesser, guesses):
    """With the same prompts, places and sampling, training and evaluation would else see the same responses, and so
    would equal prompts."""
    changes = STILL | EVALUATION | dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]", data__shuffle="false")
    changes |= dict(rollout__prompts=12, rollout__group=8, rollout__max_tokens=8, train__steps=1, log__tokens=0)
    figures, _ = train(tmp_path / "apart", guesser, **changes)
    assert figures[1]["critic/acc/mean"] != figures[0]["val-core/guess/acc/mean@8"]
    equal = tmp_path / "equal.jsonl"
    equal.write_text(guesses.read_text().splitlines()[0].join(["", "\n"]) * 12)
    changes |= dict(eval__files=f"[{equal}]", eval__samples=1, train__steps=0)
    figures, _ = train(tmp_path / "equal", guesser, **changes)
    assert 0 < figures[0]["val-core/guess/acc/mean@1"] < 1


def test_best_of_k_counts_any_right_answer_and_the_majority_of_two_is_the_first(tmp_path, guesser, guesses):
    changes = STILL | EVALUATION | dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]", log__tokens=0)
    changes |= dict(eval__prompts=1, eval__samples=2, train__steps=0)
    means, first = set(), set()
    for seed in range(8):
        figures, _ = train(tmp_path / str(seed), guesser, run__seed=seed, **changes)
        [mean], [best] = evaluations(figures, "mean@2"), evaluations(figures, "best@2/mean")
        [majority] = evaluations(figures, "maj@2/mean")
        assert best == (mean > 0)
        if mean == 0.5:
            first.add(majority)
        else:
            assert majority == mean
        means.add(mean)
    assert means >= {0.0, 0.5} and first == {0.0, 1.0}


def test_evaluation_samples_as_its_own_section_says(tmp_path, guesser, guesses):
    """Truncated to the most likely token, or greedy, every response is ANSWER; with room for 1 token none is cut."""
    changes = STILL | EVALUATION | dict(data__train=f"[{guesses}]", eval__files=f"[{guesses}]", train__steps=0)
    changes |= dict(log__tokens=0)
    plain = evaluations(train(tmp_path / "plain", guesser, **changes)[0])[0]
    assert 0.2 < plain < 0.8
    for key, value in (("temperature", 0), ("top_k", 1), ("top_p", 0.05)):
        figures, _ = train(tmp_path / key, guesser, **changes, **{f"eval__{key}": value})
        assert evaluations(figures) == [1.0], key
    hot = evaluations(train(tmp_path / "hot", guesser, eval__temperature=3, **changes)[0])[0]
    assert hot < plain / 2
