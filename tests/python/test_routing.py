"""Models with experts: routing recorded at generation and replayed in training, the load-balancing loss, the load."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

import train_truth
from augur import MaskRule
from conftest import run_augur
from train_runs import make_moe_policy, make_policy, read_metrics, small_config, without_times, write_config

EXPERTS, PER_TOKEN, LAYERS = 8, 2, 2


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    return make_moe_policy(tmp_path_factory.mktemp("sparse"))


def load(directory):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model.config._experts_implementation = "eager"
    return model


def dump(tmp_path, policy, **changes):
    settings = {"mask__preset": "none", "train__epochs": 1, "train__minibatch": 0} | changes
    config = write_config(tmp_path / "c.yaml", policy, tmp_path / "run", **settings)
    run_augur("train", config, "--dump-step", tmp_path / "dump", "log.console=false")
    lines = [json.loads(line) for line in (tmp_path / "dump" / "update_0.jsonl").read_text().splitlines()]
    return lines, load_file(tmp_path / "dump" / "update_0.safetensors")


def test_the_recorded_experts_are_the_routers(sparse, tmp_path, device):
    lines, _ = dump(tmp_path, sparse, rollout__replay_routing="true", run__device=device)
    model = load(sparse)
    compared = 0
    for sample in lines:
        tokens = (sample["prompt"] + sample["response"])[:-1]
        found = torch.tensor(sample["routing"]).view(len(tokens), LAYERS, PER_TOKEN)
        with torch.no_grad():
            logits = model(torch.tensor([tokens]), output_router_logits=True).router_logits
        for layer in range(LAYERS):
            all_layers = layer < LAYERS - 1 or device == "cuda"  # a CPU's last one for tokens that were drawn from
            begin = 0 if all_layers else len(sample["prompt"]) - 1
            top = logits[layer].topk(PER_TOKEN + 1)
            clear = (top.values[:, :-1] - top.values[:, 1:]).min(1).values > 1e-4
            for t in range(begin, len(tokens)):
                if clear[t]:
                    assert found[t, layer].tolist() == top.indices[t, :PER_TOKEN].tolist()
                    compared += 1
    assert compared > 100


def test_without_it_nothing_is_recorded(sparse, tmp_path):
    lines, _ = dump(tmp_path, sparse)
    assert all(sample["routing"] == [] for sample in lines)


def test_replayed_routing_lowers_the_mismatch(sparse, tmp_path, device):
    figures = {}
    for replay in ("false", "true"):
        config = small_config(
            tmp_path, sparse, replay, model__precision="fp8_rollout", rollout__replay_routing=replay,
            train__steps=4, train__lr=0, rollout__prompts=8, train__minibatch=0, eval__files="[]", run__device=device,
        )  # fmt: skip
        run_augur("train", config)
        figures[replay] = [line["data"]["mismatch/kl"] for line in read_metrics(tmp_path / replay)]
    assert sum(figures["true"]) < 0.9 * sum(figures["false"])


def test_doctor_shows_the_mismatch_with_and_without(sparse, device):
    flags = ["--precision", "fp8_rollout", "--device", device, "--prompts", 8, "--max-tokens", 32]
    done = run_augur("doctor", sparse, *flags, "--json")
    report = json.loads(done.stdout.splitlines()[-1])
    plain, replayed = report["kl"]["mean"], report["replayed_routing"]["kl"]["mean"]
    assert 0 < replayed < plain
    text = run_augur("doctor", sparse, "--precision", "fp32", "--device", device, "--max-tokens", 4).stdout
    assert "rollout.replay_routing" in text


def test_waiting_rollouts_keep_their_routing_in_checkpoints(sparse, tmp_path):
    changes = dict(
        rollout__replay_routing="true", rollout__staleness=1, model__precision="fp8_rollout", train__steps=5,
        eval__files="[]",
    )  # fmt: skip
    run_augur("train", small_config(tmp_path, sparse, "whole", **changes))
    config = small_config(tmp_path, sparse, "cut", **changes)
    run_augur("train", config, "train.steps=2")
    run_augur("train", config)
    assert without_times(read_metrics(tmp_path / "cut")) == without_times(read_metrics(tmp_path / "whole"))


def test_a_model_without_experts_is_told_so(tmp_path):
    policy = make_policy(tmp_path / "dense")
    config = write_config(tmp_path / "c.yaml", policy, tmp_path / "run", rollout__replay_routing="true")
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and "rollout.replay_routing" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("micro_tokens", [16384, 30])
def test_the_load_balancing_loss_is_transformers(sparse, tmp_path, micro_tokens):
    """Of the whole minibatch, also where it is computed in several micro-batches."""
    coef = 0.5
    lines, tensors = dump(tmp_path, sparse, algorithm__load_balance_coef=coef, train__micro_tokens=micro_tokens)
    model = load(sparse)
    logits = []

    def logits_of(sample):
        tokens = (sample["prompt"] + sample["response"])[:-1]
        out = model(torch.tensor([tokens]), output_router_logits=True)
        logits.append(out.router_logits)
        return out.logits[0, len(sample["prompt"]) - 1 :]

    options = dict(
        aggregation="token-mean", loss="masked", rule=MaskRule.preset("none"), horizon=8, temperature=1.0, clip_low=0.2,
        clip_high=0.28, tis_cap=2.0, entropy_bonus=0.0, kl_coef=0.0, kl="k3",
    )  # fmt: skip
    loss, _ = train_truth.minibatch_loss(lines, logits_of, options)
    layers = tuple(torch.cat([one[i] for one in logits]) for i in range(LAYERS))
    balance = load_balancing_loss_func(layers, EXPERTS, PER_TOKEN)
    (loss + coef * balance).backward()
    state = model.state_dict(keep_vars=True)
    gate = [name for name in tensors if name.startswith("gradient.") and name.endswith("mlp.gate.weight")]
    assert len(gate) == LAYERS
    for name in gate:
        expected = state[name.removeprefix("gradient.")].grad
        assert (tensors[name] - expected).abs().max() <= 5e-4 * expected.abs().max(), name


def test_the_load_of_every_expert_is_logged(sparse, tmp_path):
    config = small_config(tmp_path, sparse, train__steps=2, eval__files="[]", algorithm__load_balance_coef=0.01)
    run_augur("train", config)
    for line in read_metrics(tmp_path / "run"):
        data = line["data"]
        loads = [data[f"router/load/{e:03}"] for e in range(EXPERTS)]
        assert sum(loads) == pytest.approx(EXPERTS) and data["actor/load_balance_loss"] >= PER_TOKEN * 0.99
        assert data["router/load_min"] <= min(loads) <= max(loads) <= data["router/load_max"]


def test_the_load_is_that_of_the_tokens_of_responses(sparse, tmp_path):
    """All in one update: the shares of the experts that the responses' tokens were computed by."""
    settings = dict(train__epochs=1, train__minibatch=0, algorithm__entropy_bonus=1e-6, rollout__replay_routing="true")
    lines, _ = dump(tmp_path, sparse, **settings)
    chosen = []  # those that computed a token: each position but the last predicts the next
    for sample in lines:
        routing = torch.tensor(sample["routing"]).view(-1, LAYERS, PER_TOKEN)
        chosen.append(routing[len(sample["prompt"]) - 1 :])
    counts = torch.stack([torch.bincount(c.flatten(), minlength=EXPERTS) for c in torch.cat(chosen).unbind(1)])
    load = counts / counts.sum(1, keepdim=True) * EXPERTS
    [data] = [line["data"] for line in read_metrics(tmp_path / "run")]
    found = [data[f"router/load/{e:03}"] for e in range(EXPERTS)]
    assert found == pytest.approx(load.mean(0).tolist())
    assert (data["router/load_min"], data["router/load_max"]) == pytest.approx((float(load.min()), float(load.max())))
