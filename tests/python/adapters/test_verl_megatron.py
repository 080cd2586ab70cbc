"""AugurMegatronEngine over the real megatron-core on CPU (megatron_cpu.py says what is replaced) against the FSDP
engine and plain torch: one rank, and two Gloo ranks for tensor, pipeline and context parallelism."""

import os
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

pytest.importorskip("megatron.core")
from megatron.core.enums import ModelType  # noqa: E402
from verl.models.mcore.util import preprocess_bshd_engine, preprocess_thd_engine  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.utils.padding import no_padding_2_padding  # noqa: E402

import augur.verl  # noqa: E402
from augur.verl import rule_of  # noqa: E402
from augur.verl.engine import read_packed  # noqa: E402
from augur.verl.loss import MaskedLoss  # noqa: E402
from megatron_cpu import CPUMegatronEngine, loss_function, mpu  # noqa: E402
from ranks import end_rank  # noqa: E402
from test_verl_engine import plain_loss  # noqa: E402
from verl_cpu import (  # noqa: E402
    VOCAB,
    Qwen3ForCausalLM,
    actor_config,
    as_verl,
    make_batch,
    make_worker,
    one_process,
    save_model,
    tu,
)

MODES = ["augur", "augur_predictive_kl_exact", "augur_predictive_tv_exact", "augur_dppo_topk_kl"]
TOLERANCE = 1e-5


class Decisions:
    """What every loss of Augur's that runs inside found, micro-batch by micro-batch, padded to responses."""

    def __enter__(self):
        self.seen, self._call = [], MaskedLoss.__call__

        def keep_and_call(loss, model_output, data, dp_group=None):
            names = [name for name in model_output if name.startswith("augur_")] + ["log_probs"]
            self.seen.append({name: no_padding_2_padding(model_output[name], data).detach() for name in names})
            return self._call(loss, model_output=model_output, data=data, dp_group=dp_group)

        MaskedLoss.__call__ = keep_and_call
        return self.seen

    def __exit__(self, *_):
        MaskedLoss.__call__ = self._call


def check_same(ours, theirs, log_probs=True):
    assert len(ours) == 2  # micro-batches
    for name in [name for name in ours[0] if log_probs or name != "log_probs"]:
        mine, other = (torch.cat([part[name] for part in parts]) for parts in (ours, theirs))
        tolerance = 0 if "flags" in name else TOLERANCE
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


def flagged(batch):
    data = as_verl(batch)
    tu.assign_non_tensor(data, micro_batch_size_per_gpu=2, use_dynamic_bsz=False)
    return data


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """A model, a batch some way off its behaviour, and the FSDP engine's decisions for each mode."""
    one_process(0)
    path = save_model(tmp_path_factory.mktemp("model"))
    batch = make_batch(Qwen3ForCausalLM.from_pretrained(path), rows=4, drift=0.6)
    found = {}
    for mode in MODES:
        worker = make_worker(path, actor_config(mode), remove_padding=True, lr=0.0)
        with Decisions() as found[mode]:
            worker.train_mini_batch(as_verl(batch))
        flags = torch.cat([part["augur_flags_up"].flatten() for part in found[mode]]).to(torch.uint8)
        assert (flags.bitwise_and(2) > 0).any() and not (flags.bitwise_and(2) > 0).all()  # some outside, some not
    yield SimpleNamespace(path=path, batch=batch, found=found)
    if mpu.is_initialized():
        mpu.destroy_model_parallel()


def decisions_of(engine, batch, mode, forward_only=False):
    with Decisions() as seen:
        output = engine.forward_backward_batch(flagged(batch), loss_function(mode), forward_only=forward_only)
    return seen, output


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"use_remove_padding": False},
        {"use_remove_padding": False, "pad_bshd_to_minibatch_max": False},
        {"pad_to_length": True, "pad_to_length_bucket": 32},
    ],
    ids=str,
)
def test_decisions_equal_those_of_the_fsdp_engine(setting, mode, engine):
    seen, _ = decisions_of(CPUMegatronEngine(setting.path, **engine), setting.batch, mode)
    check_same(seen, setting.found[mode])


def test_rows_of_the_head_behind_the_vocabulary_are_no_part_of_it(setting):
    seen, _ = decisions_of(CPUMegatronEngine(setting.path, padded_vocab=2 * VOCAB), setting.batch, MODES[1])
    check_same(seen, setting.found[MODES[1]], log_probs=False)  # verl's own log-probs count them


def check_gradients(engine, setting, mode, names):
    """Those of this rank's parameters against the plain loss's; names: ours -> the plain model's and its part."""
    plain = Qwen3ForCausalLM.from_pretrained(setting.path)
    loss = plain_loss(rule_of(actor_config(mode)), plain, setting.batch)
    loss.backward()
    theirs = dict(plain.named_parameters())
    for ours, (name, part) in names.items():
        if ours in engine.parameters:
            torch.testing.assert_close(engine.parameters[ours].grad, part(theirs[name].grad), rtol=1e-4, atol=1e-7)
    return loss.item()


def metric(output, name):
    return output["metrics"][name].aggregate() if name in output.get("metrics", {}) else None


def test_loss_and_gradient_equal_plain_torch(setting):
    engine = CPUMegatronEngine(setting.path)
    _, output = decisions_of(engine, setting.batch, "augur")
    whole = {
        "output_layer.weight": ("lm_head.weight", lambda x: x),
        "embedding.word_embeddings.weight": ("model.embed_tokens.weight", lambda x: x),
        "decoder.layers.0.mlp.linear_fc2.weight": ("model.layers.0.mlp.down_proj.weight", lambda x: x),
    }
    loss = check_gradients(engine, setting, "augur", whole)
    assert metric(output, "actor/pg_loss") == pytest.approx(loss, abs=2e-6)
    assert 0 < metric(output, "mask/masked") < 1 and metric(output, "mask/missing") == 0


def test_other_losses_run_as_in_verl_itself(setting):
    with Decisions() as seen:
        output = CPUMegatronEngine(setting.path).forward_backward_batch(
            flagged(setting.batch), loss_function("vanilla"), forward_only=True
        )
    assert seen == [] and metric(output, "mask/masked") is None


def test_verl_takes_the_engine_for_megatron():
    assert EngineRegistry._engines["language_model"]["megatron"][("cuda", "nvidia")] is augur.verl.AugurMegatronEngine


def check_places(setting, engine, fp8):
    """Packing the tokens as verl does brings each where its number says."""
    engine.module = [SimpleNamespace(config=SimpleNamespace(fp8=fp8, experimental_attention_variant=None))]
    data = flagged(setting.batch)
    tokens, padding = data["input_ids"], {"use_fp8_padding": fp8 is not None}
    for data_format, pack in (("thd", preprocess_thd_engine), ("bshd", preprocess_bshd_engine)):
        place = engine._places(data, data_format)
        bucket = {"pad_to_length_bucket": 32} if engine.engine_config.pad_to_length and data_format == "thd" else {}
        packed = pack(tokens, **padding, **bucket)[0]
        assert place.shape == packed.shape
        assert torch.equal(torch.where(place >= 0, tokens.values()[place.clamp(min=0)], 0), packed)
    return place


@pytest.mark.parametrize("fp8", [None, "e4m3", "hybrid"])
@pytest.mark.parametrize("bucket", [False, True])
def test_places_follow_verls_packing(setting, fp8, bucket):
    engine = CPUMegatronEngine(setting.path, pad_to_length=bucket, pad_to_length_bucket=32)
    check_places(setting, engine, fp8)


# Two ranks -----------------------------------------------------------------------------------------------------------


class TokenTable(torch.nn.Module):
    """Logits that depend on the token alone: what context parallelism splits without attention."""

    pre_process = post_process = True
    model_type = ModelType.encoder_or_decoder

    def __init__(self, config):
        super().__init__()
        g = torch.Generator().manual_seed(4)
        self.table = torch.nn.Parameter(2 * torch.randn(VOCAB, VOCAB, generator=g))
        self.config = config

    def forward(self, input_ids, **_):
        return self.table[input_ids]

    def set_input_tensor(self, _):
        pass


def check_tensor_parallel(setting, rank):
    part = lambda x, dim=0: x.chunk(2, dim)[rank]  # noqa: E731
    parts = {
        "output_layer.weight": ("lm_head.weight", part),
        "embedding.word_embeddings.weight": ("model.embed_tokens.weight", part),
        "decoder.layers.0.mlp.linear_fc2.weight": ("model.layers.0.mlp.down_proj.weight", partial(part, dim=1)),
        "decoder.layers.1.input_layernorm.weight": ("model.layers.1.input_layernorm.weight", lambda x: x),
    }
    for mode in MODES:
        for layout in ({}, {"use_remove_padding": False}):
            engine = CPUMegatronEngine(setting.path, tensor_model_parallel_size=2, **layout)
            seen, output = decisions_of(engine, setting.batch, mode)
            check_same(seen, setting.found[mode])
            loss = check_gradients(engine, setting, mode, parts)
            assert metric(output, "actor/pg_loss") == pytest.approx(loss, abs=2e-6)
    # The second rank's part holds the padding.
    seen, _ = decisions_of(
        CPUMegatronEngine(setting.path, 96, tensor_model_parallel_size=2), setting.batch, MODES[1], True
    )
    check_same(seen, setting.found[MODES[1]], log_probs=False)


def check_pipeline_parallel(setting, rank):
    engine = CPUMegatronEngine(setting.path, pipeline_model_parallel_size=2)
    seen, output = decisions_of(engine, setting.batch, "augur")
    if rank == 0:
        assert seen == [] and output == {}  # the last stage alone decides
    else:
        check_same(seen, setting.found["augur"])
    whole = {
        "output_layer.weight": ("lm_head.weight", lambda x: x),
        "embedding.word_embeddings.weight": ("model.embed_tokens.weight", lambda x: x),
    }
    check_gradients(engine, setting, "augur", whole)


def check_context_parallel(setting, rank):
    engine = CPUMegatronEngine(setting.path, context_parallel_size=2)
    model = TokenTable(engine.tf_config)
    for mode in MODES:
        loss = MaskedLoss(None, rule_of(actor_config(mode)))
        data = flagged(setting.batch)
        tokens = data["input_ids"]
        flat = read_packed(loss, model.table[tokens.values()][None], data)
        expected = {
            name: no_padding_2_padding(torch.nested.nested_tensor_from_jagged(x[0], tokens.offsets()), data)
            for name, x in flat.items()
        }
        for layout in ({}, {"use_remove_padding": False}):
            engine = CPUMegatronEngine(setting.path, context_parallel_size=2, **layout)
            engine.module = [model]
            seen, _ = decisions_of(engine, setting.batch, mode)
            for name, whole in expected.items():
                ours = torch.cat([part[name] for part in seen])
                inside = setting.batch["response_mask"].bool()
                torch.testing.assert_close(ours[inside], whole[inside], rtol=0, atol=TOLERANCE)
    for fp8 in (None, "hybrid"):
        check_places(setting, engine, fp8)


def run_rank(rank, directory):
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/group", rank=rank, world_size=2)
    setting = SimpleNamespace(**torch.load(f"{directory}/setting.pt", weights_only=False))
    for check in (check_tensor_parallel, check_pipeline_parallel, check_context_parallel):
        check(setting, rank)
        mpu.destroy_model_parallel()
    end_rank()


def test_two_ranks_decide_as_one(setting, tmp_path):
    torch.save(vars(setting), tmp_path / "setting.pt")
    mp.spawn(run_rank, (tmp_path,), nprocs=2)
