"""One route from hidden states to log-probs: before any update every reader of them sees the numbers the loss sees."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from conftest import ROOT, run_augur, run_augur_lines
from model_zoo import edit_config, log_probs, make_model, make_sequences
from train_runs import make_policy, read_metrics, write_config

PADDING = 40
ALL = 100  # responses in the viewer: more than any step here has
STEP = dict(train__minibatch=4, train__epochs=1, model__precision="bf16", log__tokens=ALL, train__steps=1)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Logits around ±20, where bf16 rounds by 0.06, and rows of ordinary size behind the tokenizer's."""
    directory = make_policy(tmp_path_factory.mktemp("policy"))
    tensors = load_file(directory / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    random = torch.Generator().manual_seed(1)
    padding = table.std() * torch.randn(PADDING, table.shape[1], generator=random)
    table = torch.cat([table, padding])
    head = 2 * table + 4 * torch.randn(table.shape[1], generator=random)  # a shift that all logits share
    save_file(tensors | {"model.embed_tokens.weight": table, "lm_head.weight": head}, directory / "model.safetensors")
    edit_config(directory, vocab_size=len(table), tie_word_embeddings=False)
    return directory


def train(policy, tmp_path, device, *flags, **changes):
    """One step; its figures and the viewer's responses."""
    run = tmp_path / "run"
    config = write_config(tmp_path / "c.yaml", policy, run, run__device=device, **(STEP | changes))
    run_augur("train", config, "log.console=false", *flags)
    viewer = run / "tokens.jsonl"
    responses = [json.loads(line) for line in viewer.read_text().splitlines()] if viewer.exists() else []
    return read_metrics(run)[0]["data"], responses


@pytest.mark.parametrize("micro_tokens", [16384, 40])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_recomputed_anchor_is_the_policy_to_the_last_bit_that_matters(
    policy, tmp_path, device, micro_tokens, temperature
):
    changes = dict(algorithm__anchor="recomputed", train__micro_tokens=micro_tokens, rollout__temperature=temperature)
    metrics, responses = train(policy, tmp_path, device, **changes)
    tokens = [token for response in responses for token in response["tokens"]]
    assert len(responses) == 16 and len(tokens) > 30
    assert max(abs(token["ratio"] - 1) for token in tokens) <= 1e-5
    assert max(token["divergence"] for token in tokens) <= 1e-5
    assert abs(metrics["mask/ratio"] - 1) <= 1e-5 and abs(metrics["actor/ppo_kl"]) <= 1e-5
    assert metrics["mismatch/logp_diff_max"] > 1e-4  # the rollout's own numbers are further away


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_sequence_ratio_of_gspo_is_one_before_any_update(policy, tmp_path, device, temperature):
    tight = dict(algorithm__loss="gspo", algorithm__loss_clip_low=1e-5, algorithm__loss_clip_high=1e-5)
    tight |= dict(rollout__temperature=temperature)
    metrics, _ = train(policy, tmp_path, device, **tight, algorithm__anchor="recomputed")
    assert metrics["mask/masked"] == 0
    assert abs(metrics["mask/ratio"] - 1) <= 1e-5 and abs(metrics["actor/ppo_kl"]) <= 1e-5
    run = tmp_path / "recorded"
    run.mkdir()
    recorded, _ = train(policy, run, device, **tight)
    assert recorded["mask/masked"] > 0  # so tight a clip notices 1e-5


def test_padding_rows_change_no_figure_of_gspo(policy, tmp_path):
    """At step 2, where the old way masked 43% of the tokens of a padded model and none of the plain one."""
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in policy.iterdir():
        (plain / file.name).write_bytes(file.read_bytes())
    tensors = load_file(policy / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:-PADDING].clone()
    save_file(tensors, plain / "model.safetensors")
    edit_config(plain, vocab_size=len(tensors["lm_head.weight"]))
    figures = []
    for name, model in (("padded", policy), ("without", plain)):
        changes = STEP | dict(algorithm__loss="gspo", train__steps=2, log__tokens=0, model__precision="fp32")
        config = write_config(tmp_path / f"{name}.yaml", model, tmp_path / name, **changes)
        run_augur("train", config, "log.console=false")
        figures.append([line["data"] for line in read_metrics(tmp_path / name)])
    for padded, without in zip(*figures, strict=True):
        for figure in ("mask/masked", "mask/ratio", "actor/ppo_kl", "actor/entropy", "actor/grad_norm"):
            assert padded[figure] == pytest.approx(without[figure], rel=1e-4, abs=1e-6), figure


def test_reference_importance_and_viewer_read_the_same_unrounded_logits(policy, tmp_path, device):
    changes = dict(algorithm__anchor="recomputed", algorithm__loss="tis", algorithm__kl_coef=0.1)
    changes |= dict(rollout__temperature=0.8, algorithm__tis_cap=10)
    metrics, responses = train(policy, tmp_path, device, "--dump-step", tmp_path / "dump", **changes)
    assert abs(metrics["actor/kl_loss"]) <= 1e-9  # the reference is the model itself
    samples = [json.loads(line) for line in (tmp_path / "dump" / "update_0.jsonl").read_text().splitlines()]
    shown = [
        [torch.tensor([atom[3] for atom in token["support"]], dtype=torch.float64).log() for token in r["tokens"]]
        for r in responses
    ]
    off_grid = []
    for sample in samples:
        anchor = [[x for x in row if x is not None] for row in rows(sample["support_logprobs"], sample["columns"])]
        sampled = torch.tensor([row[0] for row in anchor])
        recorded = torch.tensor(sample["sampled_logprobs"])
        torch.testing.assert_close(torch.tensor(sample["importance"]), (sampled - recorded).exp(), rtol=1e-5, atol=0)
        torch.testing.assert_close(torch.tensor(sample["reference"]), sampled, rtol=0, atol=1e-6)
        assert any(same_rows(response, anchor) for response in shown)
        for row in anchor:  # Logits rounded to bf16 differ by multiples of 1/64 from 4 on.
            steps = (torch.tensor(row[1:]) - row[0]) * 0.8 * 64
            off_grid += ((steps - steps.round()).abs() > 0.02).tolist()
    assert sum(off_grid) / len(off_grid) > 0.8


def same_rows(response, anchor):
    return len(response) == len(anchor) and all(
        len(pi) == len(row) and (pi - torch.tensor(row)).abs().max() < 1e-5
        for pi, row in zip(response, anchor, strict=True)
    )


def rows(flat, columns):
    return [flat[i : i + columns] for i in range(0, len(flat), columns)]


def score_errors(directory, device, sequences):
    """Of Augur's and of transformers' log-probs in bf16, from transformers in float64."""
    lines = [{"tokens": tokens} for tokens in sequences]
    answers = run_augur_lines("score", directory, "--dtype", "bf16", "--device", device, lines=lines)
    exact = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager")
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).to(device)
    ours, theirs = [], []
    for tokens, answer in zip(sequences, answers, strict=True):
        with torch.no_grad():
            truth = log_probs(exact, tokens)
            logits = peer(torch.tensor([tokens], device=device)).logits[0, :-1].float().cpu()
        target = torch.tensor(tokens[1:]).unsqueeze(1)
        ours.append(torch.tensor(answer["logprobs"]) - truth)
        theirs.append(torch.log_softmax(logits, -1).gather(1, target).squeeze(1) - truth)
    return torch.cat(ours).abs(), torch.cat(theirs).abs()


def greedy(model, first, length):
    tokens = [first]
    while len(tokens) < length:
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("likely", [False, True])
@pytest.mark.parametrize("shift", [0.0, 4.0])
def test_scores_in_bf16_err_less_than_those_of_transformers(device, tmp_path, shift, likely):
    """Layers that add little, so that the head's rounding is what shows; with `shift` its logits are around ±20."""
    model = make_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= 0.01
            layer.mlp.down_proj.weight *= 0.01
        model.lm_head.weight *= 3
        model.lm_head.weight += shift * torch.randn(model.lm_head.weight.shape[1])
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    sequences = [greedy(model, first, 30) for first in range(5, 13)] if likely else make_sequences([70, 131, 33, 100])
    ours, theirs = score_errors(tmp_path, device, sequences)
    assert ours.mean() <= theirs.mean()


def test_scores_of_the_bundled_model_in_bf16_err_no_more_than_those_of_transformers(device):
    sequences = make_sequences([60, 90, 40], vocab=270)
    ours, theirs = score_errors(ROOT / "models" / "tiny", device, sequences)
    assert ours.mean() <= 1.1 * theirs.mean()
