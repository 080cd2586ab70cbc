"""Models read, computed, differentiated and written as transformers does it."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from conftest import ROOT, run_augur, run_augur_lines
from model_zoo import FAMILIES, as_lines, edit_config, log_probs, make_model, make_sequences
from published import smollm2_model

LENGTHS = [5, 1, 70, 2, 131, 33]


def score(directory: Path, sequences: list[list[int]], *flags) -> list[torch.Tensor]:
    lines = [{"tokens": tokens} for tokens in sequences]
    answers = run_augur_lines("score", directory, *flags, lines=lines)
    assert len(answers) == len(sequences)
    return [torch.tensor(answer["logprobs"]) for answer in answers]


def assert_scores(directory: Path, model, sequences: list[list[int]], *flags, tolerance: float = 2e-4) -> None:
    for tokens, scores in zip(sequences, score(directory, sequences, *flags), strict=True):
        with torch.no_grad():
            truth = log_probs(model, tokens)
        assert scores.shape == truth.shape
        if len(truth) > 0:
            assert (scores - truth).abs().max() < tolerance


def gradients(directory: Path, out: Path, sequences: list[list[int]], *flags: str) -> dict[str, torch.Tensor]:
    command = [ROOT / "build" / "model_gradients", directory, out, *flags]
    done = subprocess.run(command, input=as_lines(sequences), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return load_file(out)


def reference_loss(model, sequences: list[list[int]], aux: bool = False) -> torch.Tensor:
    """The loss of tests/model/gradients_main.cc."""
    scores = torch.cat([log_probs(model, tokens) for tokens in sequences])
    loss = -(scores * torch.arange(len(scores)).float().sin()).mean()
    if aux:
        runs = [model(torch.tensor([tokens]), output_router_logits=True).router_logits for tokens in sequences]
        by_layer = tuple(torch.cat(layer) for layer in zip(*runs, strict=True))
        config = model.config
        loss = loss + load_balancing_loss_func(by_layer, config.num_experts, config.num_experts_per_tok)
    return loss


def stored_gradients(model, directory: Path) -> dict[str, torch.Tensor]:
    """The gradients under the names of the files: transformers' own writer maps them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    model.save_pretrained(directory)
    return load_file(directory / "model.safetensors")


def assert_close(got: dict[str, torch.Tensor], truth: dict[str, torch.Tensor], tolerance: float) -> None:
    assert got.keys() == truth.keys()
    for name, value in truth.items():  # some are zero but for rounding: a key's bias where nothing is rotated
        error = (got[name] - value).norm() / value.norm().clamp_min(1e-3)
        worst = (got[name] - value).abs().max() / value.abs().max().clamp_min(1e-3)
        assert max(error, worst) < tolerance, f"{name}: {error:.2e}, {worst:.2e}"


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_equal_transformers(name, device, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path)
    assert_scores(tmp_path, model, make_sequences(LENGTHS), "--device", device)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_equal_transformers(name, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    sequences = make_sequences([7, 70, 2, 19])
    got = gradients(tmp_path / "model", tmp_path / "gradients", sequences)
    loss = reference_loss(model, sequences)
    loss.backward()
    assert abs(got.pop("loss") - loss) < 1e-5
    assert_close(got, stored_gradients(model, tmp_path / "truth"), 1e-4)


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-norm"])
def test_the_auxiliary_loss_and_its_gradients_equal_transformers(name, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    sequences = make_sequences([7, 40, 2])
    got = gradients(tmp_path / "model", tmp_path / "gradients", sequences, "aux")
    loss = reference_loss(model, sequences, aux=True)
    loss.backward()
    assert abs(got.pop("loss") - loss) < 1e-5
    assert_close(got, stored_gradients(model, tmp_path / "truth"), 1e-4)


@pytest.mark.parametrize("what", ["checkpoint", "recompute"])
@pytest.mark.parametrize("name", ["llama", "qwen3-tied-bias", "qwen3-moe-norm", "olmo2", "smollm3"])
def test_computing_again_in_the_backward_gives_the_same_gradients(name, what, tmp_path):
    make_model(name).save_pretrained(tmp_path / "model")
    sequences = make_sequences([7, 70, 2])
    aux = ["aux"] if "moe" in name else []
    plain = gradients(tmp_path / "model", tmp_path / "plain", sequences, *aux)
    again = gradients(tmp_path / "model", tmp_path / "again", sequences, what, *aux)
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[key], again[key]) for key in plain)


def shift_experts(model, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Records each router's choices on every sequence; from then on the experts one up are used instead."""
    recorded = []

    def record(router, inputs, outputs):
        recorded.append((outputs[2] + 1) % router.num_experts)

    routers = [layer.mlp.gate for layer in model.model.layers]
    hooks = [router.register_forward_hook(record) for router in routers]
    with torch.no_grad():
        for tokens in sequences:
            log_probs(model, tokens)
    for hook in hooks:
        hook.remove()

    def replay(router, inputs, outputs):
        experts = recorded.pop(0)
        probabilities = torch.softmax(outputs[0], -1).gather(1, experts)
        if router.norm_topk_prob:
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return outputs[0], probabilities, experts

    for router in routers:
        router.register_forward_hook(replay)
    return recorded


def test_replayed_routing_uses_the_given_experts_with_the_routers_weights_of_today(tmp_path):
    model = make_model("qwen3-moe")
    model.config.norm_topk_prob = True
    for layer in model.model.layers:
        layer.mlp.gate.norm_topk_prob = True
    model.save_pretrained(tmp_path / "model")
    sequences = make_sequences([9, 30])
    got = gradients(tmp_path / "model", tmp_path / "gradients", sequences, "shift-experts")
    shifted = shift_experts(model, sequences)
    loss = reference_loss(model, sequences)
    loss.backward()
    assert not shifted
    assert abs(got.pop("loss") - loss) < 1e-5
    assert_close(got, stored_gradients(model, tmp_path / "truth"), 1e-4)


def test_packed_sequences_equal_one_by_one(tmp_path):
    for name in ["llama3-rope", "qwen3-moe"]:
        make_model(name).save_pretrained(tmp_path / name)
        sequences = make_sequences(LENGTHS)
        packed = score(tmp_path / name, sequences)
        alone = score(tmp_path / name, sequences, "--batch-tokens", "1", "--threads", "1")
        assert all((a - b).abs().max() < 2e-5 for a, b in zip(packed, alone, strict=True) if len(a) > 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shards", ["1GB", "20KB"])
def test_reads_every_stored_precision_single_and_sharded(dtype, shards, tmp_path):
    make_model("qwen2-tied").to(dtype).save_pretrained(tmp_path, max_shard_size=shards)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shards == "20KB")
    truth = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert_scores(tmp_path, truth, make_sequences(LENGTHS))


@pytest.mark.slow
def test_errors_in_bfloat16_are_no_larger_than_those_of_transformers(device, tmp_path):
    """By medians: where rounding sends a token to another expert, either side's error is that of another model."""
    ours, peers = [], []
    for name in ["llama", "qwen3-tied-bias", "qwen3-moe-norm", "mistral", "olmo2", "smollm3"]:
        for seed in range(2):
            folder = tmp_path / f"{name}-{seed}"
            make_model(name, seed).bfloat16().save_pretrained(folder)
            sequences = make_sequences([40, 90], seed)
            scores = torch.cat(score(folder, sequences, "--dtype", "bf16", "--device", device))
            rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
            full = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            with torch.no_grad():
                theirs = torch.cat([log_probs(rounded, tokens) for tokens in sequences])
                exact = torch.cat([log_probs(full, tokens) for tokens in sequences])
            ours.append((scores - exact).abs().median())
            peers.append((theirs - exact).abs().median())
    assert sum(ours) < sum(peers)


SAVED = ["llama-bias", "llama-tied", "qwen3", "qwen3-moe-norm", "mistral", "olmo2-bias", "smollm3-bias"]


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("flags", [[], pytest.param(["shards"], marks=pytest.mark.slow)])
def test_transformers_loads_what_is_saved_with_equal_tensors(name, flags, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    gradients(tmp_path / "model", tmp_path / "out", make_sequences([3]), *flags)
    saved = tmp_path / "out.model"
    assert (saved / "tokenizer.json").read_text() == "{}"
    assert (saved / "model.safetensors.index.json").exists() == bool(flags)
    loaded, info = AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    truth = model.state_dict()
    assert loaded.state_dict().keys() == truth.keys()
    assert all(torch.equal(value, truth[key]) for key, value in loaded.state_dict().items())
    tokens = make_sequences([20])[0]
    loaded.config._experts_implementation = "eager"  # as model_zoo's
    with torch.no_grad():
        assert torch.equal(model(torch.tensor([tokens])).logits, loaded(torch.tensor([tokens])).logits)
    assert_scores(saved, model, [tokens])


def test_reads_configurations_of_older_transformers(tmp_path):
    model = make_model("llama3-rope")
    model.save_pretrained(tmp_path / "llama")
    scaling = {k: v for k, v in model.config.rope_parameters.items() if k != "rope_theta"}
    old = dict(rope_parameters=None, rope_theta=10000.0, rope_scaling=scaling, dtype=None)
    edit_config(tmp_path / "llama", torch_dtype="float32", head_dim=None, **old)
    assert_scores(tmp_path / "llama", model, make_sequences(LENGTHS))
    model = make_model("qwen3-moe")
    model.save_pretrained(tmp_path / "moe")
    edit_config(tmp_path / "moe", num_local_experts=None, num_experts=8, rope_parameters=None, rope_theta=10000)
    assert_scores(tmp_path / "moe", model, make_sequences(LENGTHS))


def test_keys_left_out_stand_for_the_familys_defaults(tmp_path):
    cases = {
        "mistral": dict(num_key_value_heads=8, num_attention_heads=8, sliding_window=4096),
        "olmo2": dict(rms_norm_eps=1e-5),
        "smollm3": dict(num_key_value_heads=4, num_attention_heads=8, num_hidden_layers=4),
    }
    left_out = ["num_key_value_heads", "sliding_window", "rms_norm_eps", "tie_word_embeddings", "rope_parameters"]
    for name, fields in cases.items():
        model_class, config_class, common = FAMILIES[name]
        common = {key: value for key, value in common.items() if key != "no_rope_layer_interval"}
        torch.manual_seed(0)
        model = model_class(config_class(**common | fields)).eval()
        model.save_pretrained(tmp_path / name)
        kept = [key for key in left_out if name != "olmo2" or key != "num_key_value_heads"]
        edit_config(tmp_path / name, **dict.fromkeys([*kept, "no_rope_layers"]))
        assert_scores(tmp_path / name, model, make_sequences(LENGTHS))


def test_a_window_over_all_layers_limits_what_the_model_reads(tmp_path):
    make_model("mistral-window").save_pretrained(tmp_path)
    assert "201 tokens, but the model reads 200 (sliding_window)" in refusal(tmp_path, as_lines(make_sequences([201])))
    score(tmp_path, make_sequences([200]))


def test_a_tied_head_may_be_stored_if_it_is_equal(tmp_path):
    model = make_model("llama-tied")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    save_file(weights | {"lm_head.weight": embedding.clone()}, tmp_path / "model.safetensors")
    assert_scores(tmp_path, model, make_sequences([20]))
    save_file(weights | {"lm_head.weight": embedding + 1}, tmp_path / "model.safetensors")
    assert "tie_word_embeddings" in refusal(tmp_path)


def refusal(directory: Path, stdin: str = '{"tokens":[1,2]}\n', *flags) -> str:
    done = run_augur("score", directory, *flags, stdin=stdin, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("augur: ") and done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(model_type="gpt2"), ["config.json", "'gpt2'", "llama, qwen2, qwen3, qwen3_moe, mistral, olmo2, smollm3"]),
        (dict(model_type=None), ["model_type"]),
        (dict(hidden_size=None), ["hidden_size", "missing"]),
        (dict(hidden_size="48"), ["hidden_size", "whole number"]),
        (dict(num_hidden_layers=-1), ["num_hidden_layers", "-1"]),
        (dict(vocab_size=10**30), ["vocab_size"]),
        (dict(vocab_size=98), ["model.embed_tokens.weight", "[97, 48]", "[98, 48]"]),
        (dict(intermediate_size=2**24, hidden_size=2**24, head_dim=8), ["model.embed_tokens.weight"]),
        (dict(num_hidden_layers=4), ["model.layers.3.input_layernorm.weight", "missing"]),
        (dict(num_hidden_layers=2), ["unexpected tensor model.layers.2."]),
        (dict(attention_bias=True), ["q_proj.bias", "missing"]),
        (dict(num_key_value_heads=4), ["num_attention_heads 6", "num_key_value_heads 4"]),
        (dict(num_attention_heads=12), ["shape"]),
        (dict(hidden_act="gelu"), ["gelu", "silu"]),
        (dict(rope_parameters=dict(rope_type="yarn", factor=2.0)), ["yarn", "default, llama3"]),
        (dict(rope_scaling=dict(type="llama3", factor=2.0)), ["low_freq_factor"]),
        (dict(model_type="qwen2", use_sliding_window=True, max_window_layers=0), ["sliding"]),
        (dict(model_type="smollm3", use_sliding_window=True, sliding_window=8), ["sliding"]),
        (dict(model_type="smollm3", no_rope_layers=[1, 0]), ["no_rope_layers", "for each layer"]),
        (dict(quantization_config=dict(bits=4)), ["quantization_config"]),
        (dict(tie_word_embeddings=True), ["lm_head.weight", "tie_word_embeddings"]),
    ],
)
def test_says_what_is_wrong_with_a_configuration(changes, words, tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    edit_config(tmp_path, **changes)
    message = refusal(tmp_path)
    for word in words:
        assert word in message, message


def test_says_what_is_wrong_with_weights(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"

    def message_with(changed: dict[str, torch.Tensor]) -> str:
        save_file(changed, file)
        return refusal(tmp_path)

    for value in [float("nan"), float("inf")]:
        bad = weights[name].clone()
        bad[3, 4] = value
        assert f"{name} holds NaN or infinite" in message_with(weights | {name: bad})
    assert f"{name} is missing" in message_with({k: v for k, v in weights.items() if k != name})
    assert "unexpected tensor extra" in message_with(weights | {"extra": torch.zeros(2)})
    assert "I64" in message_with(weights | {name: weights[name].long()})
    assert "[48, 80]" in message_with(weights | {name: weights[name].T.contiguous()})
    assert "lm_head.weight is missing" in message_with({k: v for k, v in weights.items() if k != "lm_head.weight"})
    save_file(weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, file)
    score(tmp_path, [[1, 2]])


def test_says_which_shard_or_file_is_missing(tmp_path):
    make_model("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(tmp_path)
    (tmp_path / "config.json").unlink()
    assert "config.json" in refusal(tmp_path)
    assert "no such directory" in refusal(tmp_path / "none")


@pytest.mark.parametrize(
    "line, words",
    [
        ('{"tokens":[]}', ["empty"]),
        ('{"tokens":[1,97]}', ["token id 97", "97"]),
        ('{"tokens":[1,-1]}', ["token id -1"]),
        ('{"tokens":[1,1.5]}', ["1.5", "whole number"]),
        ('{"tokens":[1,"a"]}', ['"a"']),
        ('{"tokens":[1,true]}', ["true"]),
        ('{"tokens":[1,18446744073709551617]}', ["whole number"]),
        ('{"tokens":7}', ["list"]),
        ('{"ids":[1]}', ["tokens"]),
        ("[1]", ["object"]),
        ("{", ["JSON"]),
        (json.dumps({"tokens": [1] * 513}), ["513", "512", "max_position_embeddings"]),
    ],
)
def test_says_which_line_is_wrong_and_answers_those_before(line, words, tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    done = run_augur("score", tmp_path, stdin='{"tokens":[1,2]}\n\n{"tokens":[3]}\n' + line + "\n", check=False)
    assert done.returncode == 2
    assert "augur: line 4: " in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    answers = [json.loads(answer) for answer in done.stdout.splitlines()]
    assert len(answers) == 2 and answers[1] == {"logprobs": []}


def test_refuses_unknown_precisions_and_devices(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    assert "fp32, bf16" in refusal(tmp_path, "", "--dtype", "fp8")
    assert "unknown device 'gpu'" in refusal(tmp_path, "", "--device", "gpu")


def test_answers_a_line_before_the_next_is_written(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    command = [ROOT / "build" / "augur", "score", tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for tokens in make_sequences([4, 9]):
            process.stdin.write(as_lines([tokens]))
            process.stdin.flush()
            assert len(json.loads(process.stdout.readline())["logprobs"]) == len(tokens) - 1
        process.stdin.close()


@pytest.mark.slow
def test_smollm2_log_probs_equal_transformers():
    directory = smollm2_model()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert_scores(directory, model, make_sequences([3, 90, 1, 257], vocab=model.config.vocab_size))


@pytest.mark.slow
def test_smollm2_gradients_equal_transformers(tmp_path):
    """In float64: on this model transformers' own float32 gradients err by up to 1e-4."""
    directory = smollm2_model()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    sequences = make_sequences([13, 40], vocab=model.config.vocab_size)
    got = gradients(directory, tmp_path / "gradients", sequences)
    loss = reference_loss(model, sequences)
    loss.backward()
    assert abs(got.pop("loss") - loss) < 1e-4
    assert_close(got, {name: parameter.grad for name, parameter in model.named_parameters()}, 1e-4)
