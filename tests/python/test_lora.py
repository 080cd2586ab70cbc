"""Low-rank adapters against peft and transformers: forward, gradients, AdamW, files both ways."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import train_truth
from augur import MaskRule
from conftest import run_augur
from model_zoo import as_lines, log_probs, make_sequences
from train_runs import VOCAB, make_moe_policy, make_policy, read_metrics, small_config, without_times, write_config

RANK = 4
LORA = dict(lora__rank=RANK, lora__alpha=8)
SEQUENCES = make_sequences([7, 19, 2, 40], vocab=VOCAB)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    return make_moe_policy(tmp_path_factory.mktemp("sparse"))


@pytest.fixture(params=["dense", "sparse"])
def policy(request):
    return request.getfixturevalue(request.param)


def load_base(directory, dtype=torch.float32):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager")
    model.config._experts_implementation = "eager"
    return model.eval()


def load_adapted(base, adapter, dtype=torch.float32, trained=False):
    return PeftModel.from_pretrained(
        load_base(base, dtype), adapter, is_trainable=trained, autocast_adapter_dtype=False
    )


def score(model, *flags):
    done = run_augur("score", model, *flags, stdin=as_lines(SEQUENCES))
    return [torch.tensor(json.loads(line)["logprobs"]) for line in done.stdout.splitlines()]


def check_scores(found, model, tolerance=2e-5):
    with torch.no_grad():
        for ours, tokens in zip(found, SEQUENCES, strict=True):
            torch.testing.assert_close(ours, log_probs(model, tokens).float(), rtol=tolerance, atol=tolerance)


def peft_adapter(policy, out, base=None, **changes):
    """An adapter of peft's own whose factors are both random."""
    torch.manual_seed(5)
    settings = dict(r=RANK, lora_alpha=6, target_modules="all-linear", modules_to_save=["model.norm"]) | changes
    model = get_peft_model(load_base(policy), LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn_like(parameter))
            elif parameter.requires_grad:
                parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    model.save_pretrained(out)
    config = json.loads((out / "adapter_config.json").read_text())
    (out / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(base or policy)}))
    return model.eval()


def in_peft(name, tensor):
    """A dumped tensor by peft's name, and in its form."""
    name = "base_model.model." + name
    if ".experts." in name:
        inner = "base_layer." if "gate_up_proj" in name else ""
        name = name.replace("gate_up_proj.", inner).replace("down_proj.", inner)
        tensor = tensor.flatten(0, 1) if "lora_A" in name else tensor.permute(1, 2, 0).flatten(1, 2)
    return name.replace(".weight", ".default.weight") if "lora_" in name else name, tensor


def dump(tmp_path, policy, **changes):
    tmp_path.mkdir(exist_ok=True)
    settings = {"mask__preset": "none", "run__seed": 3} | changes
    config = write_config(tmp_path / "c.yaml", policy, tmp_path / "run", **settings)
    run_augur("train", config, "--dump-step", tmp_path / "dump", "log.console=false")
    updates = []
    while (tmp_path / "dump" / f"update_{len(updates)}.jsonl").exists():
        stem = tmp_path / "dump" / f"update_{len(updates)}"
        lines = [json.loads(line) for line in stem.with_suffix(".jsonl").read_text().splitlines()]
        updates.append((lines, load_file(stem.with_suffix(".safetensors"))))
    return updates


def logits_of(model):
    def logits(sample):
        tokens = sample["prompt"] + sample["response"]
        return model(torch.tensor([tokens])).logits[0, len(sample["prompt"]) - 1 : -1]

    return logits


def trained(model):
    """By the names of the file, as peft keeps them in memory."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found[name.replace(".modules_to_save.default.weight", ".weight")] = parameter
    return found


def check_updates(base, adapter, updates, lr=0.01, tolerance=3e-4, **options):
    """Follows Augur with peft and torch's AdamW."""
    model = load_adapted(base, adapter, trained=True)
    parameters = trained(model)
    optimizer = torch.optim.AdamW(parameters.values(), lr=lr, eps=1e-3, weight_decay=0.01)
    settings = dict(
        aggregation="token-mean", loss="masked", rule=MaskRule.preset("none"), horizon=8, temperature=1.0,
        clip_low=0.2, clip_high=0.28, tis_cap=2.0, entropy_bonus=0.0, kl_coef=0.0, kl="k3",
    ) | options  # fmt: skip
    for lines, tensors in updates:
        loss, _ = train_truth.minibatch_loss(lines, logits_of(model), settings)
        optimizer.zero_grad()
        loss.backward()
        gradients = dict(in_peft(k.removeprefix("gradient."), v) for k, v in tensors.items() if "gradient." in k)
        assert gradients.keys() == parameters.keys()
        torch.testing.assert_close(tensors["loss"][0], loss.detach(), rtol=tolerance, atol=tolerance)
        largest = max(p.grad.abs().max() for p in parameters.values())
        for name, parameter in parameters.items():
            error = (gradients[name] - parameter.grad).abs().max()
            assert error <= tolerance * parameter.grad.abs().max() + 1e-5 * largest, (name, float(error))
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        torch.testing.assert_close(tensors["grad_norm"][0], norm, rtol=tolerance, atol=1e-6)
        optimizer.step()
        after = dict(in_peft(k.removeprefix("after."), v) for k, v in tensors.items() if k.startswith("after."))
        with torch.no_grad():
            for name, parameter in parameters.items():
                assert (after[name] - parameter).abs().max() <= 0.02 * lr, name
                parameter.copy_(after[name])
    return gradients


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_forward_gradients_and_adamw_are_those_of_peft(policy, tmp_path, recompute):
    updates = dump(tmp_path, policy, train__checkpoint_activations=recompute, **LORA)
    assert len(updates) == 4
    last = check_updates(policy, tmp_path / "dump" / "before_adapter", updates)
    assert all(gradient.abs().max() > 0 for name, gradient in last.items() if "experts" not in name)
    assert any(gradient.abs().max() > 0 for name, gradient in last.items() if "experts" in name) or "dense" in str(
        policy
    )


def test_a_fresh_adapter_adds_nothing_and_is_drawn_as_peft_draws_it(policy, tmp_path):
    dump(tmp_path, policy, **LORA)
    tensors = load_file(tmp_path / "dump" / "before_adapter" / "adapter_model.safetensors")
    for name, tensor in tensors.items():
        if "lora_B" in name:
            assert tensor.count_nonzero() == 0
        elif "lora_A" in name:
            bound = tensor.shape[1] ** -0.5
            assert 0.8 * bound < tensor.abs().max() <= bound and tensor.mean().abs() < 0.2 * bound
    other = get_peft_model(load_base(policy), LoraConfig(r=RANK, target_modules="all-linear"))
    names = {name.replace(".default", "") for name, p in other.named_parameters() if p.requires_grad}
    assert names - set(tensors) <= {name for name in names if ".mlp.gate." in name}  # the router is no linear layer
    assert set(tensors) - names == {"base_model.model.model.norm.weight"}
    dump(tmp_path / "other", policy, **LORA, run__seed=4)
    others = load_file(tmp_path / "other" / "dump" / "before_adapter" / "adapter_model.safetensors")
    assert not any(tensor.equal(others[name]) for name, tensor in tensors.items() if "lora_A" in name)


def test_an_adapter_of_peft_gives_its_log_probs_and_is_continued(policy, tmp_path):
    model = peft_adapter(policy, tmp_path / "peft")
    check_scores(score(tmp_path / "peft", "--dtype", "fp32"), model)
    updates = dump(tmp_path, policy, lora__adapter=tmp_path / "peft")
    check_updates(policy, tmp_path / "peft", updates)
    ours = load_file(tmp_path / "dump" / "before_adapter" / "adapter_model.safetensors")
    theirs = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)
    check_scores(score(tmp_path / "dump" / "before", "--dtype", "fp32"), model)


def test_the_adapters_directory_may_stand_for_the_model(dense, tmp_path):
    peft_adapter(dense, tmp_path / "peft", lora_alpha=3, use_rslora=True, modules_to_save=None)
    updates = dump(tmp_path, tmp_path / "peft")
    check_updates(dense, tmp_path / "peft", updates)


def test_the_experts_down_proj_alone_where_its_input_is_as_wide_as_the_layers(tmp_path):
    """Both tensors of experts then take as many values, and have one name in peft's file."""
    square = make_moe_policy(tmp_path / "square", moe_intermediate_size=32)
    names = ["mlp.experts.down_proj"]
    model = peft_adapter(square, tmp_path / "peft", target_modules=["q_proj"], target_parameters=names)
    check_scores(score(tmp_path / "peft", "--dtype", "fp32"), model)


@pytest.mark.parametrize("targets", [["gate_up_proj"], ["down_proj"]])
def test_one_of_the_experts_tensors_alone(sparse, tmp_path, targets):
    names = [f"mlp.experts.{name}" for name in targets]
    model = peft_adapter(sparse, tmp_path / "peft", target_modules=["q_proj"], target_parameters=names)
    check_scores(score(tmp_path / "peft", "--dtype", "fp32"), model)
    updates = dump(tmp_path, sparse, lora__targets=f"[q_proj, {names[0]}]", **LORA)
    assert any(targets[0] in name for name in updates[0][1]) and not any("o_proj" in name for name in updates[0][1])
    model = load_adapted(sparse, tmp_path / "dump" / "before_adapter")  # peft reads what we wrote of it
    check_scores(score(tmp_path / "dump" / "before", "--dtype", "fp32"), model)


def test_pickles_and_what_changes_the_computation_are_refused(dense, tmp_path):
    peft_adapter(dense, tmp_path / "peft")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())

    def refused(part):
        done = run_augur("score", tmp_path / "peft", stdin=as_lines(SEQUENCES), check=False)
        assert done.returncode == 2 and part in done.stderr and done.stderr.count("\n") == 1, done.stderr

    changes = [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "biases"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"r": "x"}, "adapter_config.json"),
        ({"r": RANK + 1}, f"has rank {RANK + 1} here and {RANK} in"),
        ({"rank_pattern": {"q_proj": 2}}, f"q_proj has rank 2 here and {RANK} in"),
        ({"base_model_name_or_path": "nowhere"}, "nowhere"),
    ]
    for change, part in changes:
        (tmp_path / "peft" / "adapter_config.json").write_text(json.dumps(config | change))
        refused(part)
    (tmp_path / "peft" / "adapter_config.json").write_text(json.dumps(config))
    file = tmp_path / "peft" / "adapter_model.safetensors"
    file.rename(tmp_path / "peft" / "adapter_model.bin")
    refused("pickle")


def test_an_adapter_of_another_model_is_refused(dense, sparse, tmp_path):
    peft_adapter(dense, tmp_path / "peft", base=sparse)
    done = run_augur("score", tmp_path / "peft", stdin=as_lines(SEQUENCES), check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"lora__targets": "[q_prj]"}, "'q_prj'"),
        ({"lora__targets": "[]"}, "lora.targets"),
        ({"lora__dropout": 0.1}, "lora.dropout"),
        ({"lora__modules_to_save": "[q_proj]"}, "q_proj"),
        ({"lora__modules_to_save": "[embed_tokens]"}, "embedding"),
        ({"lora__rank": -1}, "lora.rank"),
        ({"lora__adapter": "nowhere"}, "nowhere"),
    ],
)
def test_faults_are_one_line(dense, tmp_path, changes, part):
    config = write_config(tmp_path / "c.yaml", dense, tmp_path / "run", **(LORA | changes))
    done = run_augur("train", config, check=False)
    assert done.returncode == 2 and part in done.stderr and done.stderr.count("\n") == 1, done.stderr


def adapter_of(directory):
    return load_file(directory / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def run(tmp_path_factory, dense):
    tmp_path = tmp_path_factory.mktemp("run")
    config = small_config(tmp_path, dense, train__steps=4, train__lr=0.03, checkpoint__keep=0, eval__files="[]", **LORA)
    assert "adapter: " in run_augur("train", config).stdout
    return tmp_path / "run"


def test_checkpoints_and_the_run_hold_adapters_alone(run, dense):
    base = load_file(dense / "model.safetensors")
    names = load_file(run / "checkpoints" / "global_step_4" / "tensors.safetensors").keys()
    assert all(".lora_" in name or name.endswith("model.norm.weight") for name in names)
    assert not (run / "model").exists() and not base.keys() & adapter_of(run / "adapter").keys()
    config = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == RANK and config["lora_alpha"] == 8 and config["base_model_name_or_path"] == str(dense)


def test_peft_with_transformers_gives_our_log_probs(run, dense, tmp_path):
    model = load_adapted(dense, run / "adapter")
    assert any(t.abs().max() > 0.01 for name, t in adapter_of(run / "adapter").items() if "lora_B" in name)
    check_scores(score(run / "adapter", "--dtype", "fp32"), model)
    with torch.no_grad(), pytest.raises(AssertionError):
        check_scores(score(dense, "--dtype", "fp32"), model)  # it learned


def test_export_merges_or_copies(run, dense, tmp_path):
    run_augur("export", run, tmp_path / "plain", "--merge")
    merged = load_adapted(dense, run / "adapter").merge_and_unload().state_dict()
    ours = load_file(tmp_path / "plain" / "model.safetensors")
    assert all((ours[name] - merged[name]).abs().max() < 1e-6 for name in ours)
    assert (tmp_path / "plain" / "tokenizer.json").exists()
    run_augur("export", run / "checkpoints" / "global_step_4", tmp_path / "adapter")
    same = adapter_of(tmp_path / "adapter")
    assert all(tensor.equal(same[name]) for name, tensor in adapter_of(run / "adapter").items())
    run_augur("export", run / "checkpoints" / "global_step_2", tmp_path / "earlier", "--merge", "--dtype", "bf16")
    assert not load_file(tmp_path / "earlier" / "model.safetensors")["model.norm.weight"].equal(
        ours["model.norm.weight"]
    )
    done = run_augur("export", run, tmp_path / "none", "--dtype", "bf16", check=False)
    assert done.returncode == 2 and "--merge" in done.stderr


def test_a_resumed_run_has_the_same_bits(run, dense, tmp_path):
    config = small_config(tmp_path, dense, train__steps=4, train__lr=0.03, checkpoint__keep=0, eval__files="[]", **LORA)
    run_augur("train", config, "train.steps=2")
    run_augur("train", config)
    assert without_times(read_metrics(tmp_path / "run")) == without_times(read_metrics(run))
    again = adapter_of(tmp_path / "run" / "adapter")
    assert all(tensor.equal(again[name]) for name, tensor in adapter_of(run / "adapter").items())


def test_the_reference_of_kl_coef_is_the_base(policy, tmp_path):
    model = peft_adapter(policy, tmp_path / "peft")
    updates = dump(tmp_path, policy, lora__adapter=tmp_path / "peft", algorithm__kl_coef=0.1)
    base = load_base(policy)
    for lines, _ in updates:
        for sample in lines:
            with torch.no_grad():
                chosen = torch.tensor(sample["response"])[:, None]
                expected, adapted = (
                    torch.log_softmax(logits_of(m)(sample), -1).gather(1, chosen)[:, 0] for m in (base, model)
                )
            torch.testing.assert_close(torch.tensor(sample["reference"]), expected, rtol=2e-4, atol=2e-4)
            assert (adapted - expected).abs().max() > 1e-3
    check_updates(policy, tmp_path / "peft", updates, kl_coef=0.1)


@pytest.mark.parametrize("precision", ["bf16", "fp8_rollout", "fp8"])
def test_rollouts_compute_what_the_trainer_computes(policy, tmp_path, precision):
    """However far the adapters are, the mismatch is that of the precision itself."""
    mismatch = {}
    for name, changes in {"lora": LORA | dict(train__lr=0.05), "plain": dict(train__lr=0.005)}.items():
        config = small_config(
            tmp_path, policy, name, model__precision=precision, train__steps=5, eval__files="[]", **changes
        )
        run_augur("train", config)
        lines = read_metrics(tmp_path / name)
        mismatch[name] = sum(line["data"]["mismatch/logp_diff_mean"] for line in lines[-3:]) / 3
    assert 0 < mismatch["lora"] < 3 * mismatch["plain"] + 0.005


def test_sft_trains_adapters(dense, tmp_path):
    rows = "".join(json.dumps({"prompt": "3 1 2", "answer": "1 2 3"}) + "\n" for _ in range(3))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "c.yaml").write_text(
        f"run: {{dir: {tmp_path / 'run'}, threads: 1}}\nmodel: {{path: {dense}, precision: fp32}}\n"
        f"lora: {{rank: {RANK}}}\ndata: {{train: [{tmp_path / 'rows.jsonl'}]}}\nlog: {{console: false}}\n"
        "sft: {steps: 8, batch: 3, lr: 0.03}\n"
    )
    run_augur("sft", tmp_path / "c.yaml")
    losses = [line["data"]["train/loss"] for line in read_metrics(tmp_path / "run")]
    assert losses[-1] < losses[0] - 0.2
    check_scores(
        score(tmp_path / "run" / "adapter", "--dtype", "fp32"), load_adapted(dense, tmp_path / "run" / "adapter")
    )
    run_augur("sft", tmp_path / "c.yaml", "sft.steps=9")
    assert len(read_metrics(tmp_path / "run")) == 9


@pytest.mark.parametrize(
    "changes",
    [
        dict(use_rslora=True),
        dict(target_modules=["q_proj"], target_parameters=["mlp.gate.weight"], alpha_pattern={"mlp.gate.weight": 40}),
        dict(target_modules=["q_proj"], target_parameters=["mlp.gate.weight"], rank_pattern={"mlp.gate.weight": 2}),
    ],
    ids=["rslora", "alpha", "rank"],
)
@pytest.mark.filterwarnings("ignore:.*did not match any targeted module")  # peft on its own patterns of parameters
def test_the_routers_adapter_has_its_own_scale(sparse, tmp_path, changes):
    peft_adapter(sparse, tmp_path / "peft", **changes)
    check_scores(score(tmp_path / "peft", "--dtype", "fp32"), load_adapted(sparse, tmp_path / "peft"))
    settings = dict(train__steps=1, train__lr=0.02, train__epochs=1, lora__adapter=tmp_path / "peft")
    run_augur("train", write_config(tmp_path / "train.yaml", sparse, tmp_path / "run", **settings))
    adapter = tmp_path / "run" / "adapter"
    check_scores(score(adapter, "--dtype", "fp32"), load_adapted(sparse, adapter))


@pytest.mark.parametrize("pattern", ["v_proj.weight", "v_proj"])
@pytest.mark.filterwarnings("ignore:.*did not match any targeted module")
def test_a_linear_layer_adapted_as_a_parameter_has_the_scale_that_peft_gives_it(dense, tmp_path, pattern):
    changes = dict(
        target_modules=["q_proj"], target_parameters=["self_attn.v_proj.weight"], alpha_pattern={pattern: 33}
    )
    peft_adapter(dense, tmp_path / "peft", **changes)
    check_scores(score(tmp_path / "peft", "--dtype", "fp32"), load_adapted(dense, tmp_path / "peft"))


def test_a_merged_export_in_float32_has_the_master_weights(dense, tmp_path):
    settings = LORA | dict(train__steps=1, model__precision="bf16", checkpoint__every=1)
    run_augur("train", write_config(tmp_path / "train.yaml", dense, tmp_path / "run", **settings))
    run_augur("export", tmp_path / "run", tmp_path / "out", "--merge", "--dtype", "fp32")
    states = load_file(tmp_path / "run" / "checkpoints" / "global_step_1" / "tensors.safetensors")
    norm = load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    assert norm.equal(states["master.model.norm.weight"]) and not norm.equal(norm.bfloat16().float())
