"""verl's Megatron engine on CPU over the real megatron-core. Import this before megatron.

Replaced, because they need CUDA: the current device, synchronisation, moving to the GPU, one counter that Megatron's
schedule puts there, and the attention kernel for packed sequences (Transformer Engine's), here in plain torch. The
layers are Megatron's local ones; the model is made and loaded here, because the bridges build Transformer Engine's.
With AUGUR_TEST_DEVICE=cuda the attention, the layers and the bridge alone are replaced.
"""

import os
from functools import partial
from types import ModuleType, SimpleNamespace

import torch

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
import verl_cpu  # noqa: E402
from verl_cpu import ON_CUDA, VOCAB, Qwen3ForCausalLM, actor_config  # noqa: E402

if not ON_CUDA:
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None

from megatron.core import parallel_state as mpu  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.pipeline_parallel import schedules  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from verl.workers.config import HFModelConfig, McoreEngineConfig  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

from augur.verl.megatron_engine import AugurMegatronEngine  # noqa: E402


class OnCPU(ModuleType):
    """torch, with what is asked for on the GPU made on the CPU."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def zeros(*args, device=None, **kwargs):
        return torch.zeros(*args, **kwargs)


if not ON_CUDA:
    schedules.torch = OnCPU("torch")


class PlainAttention(torch.nn.Module):
    """Causal attention in plain torch, over packed sequences ([t, heads, d] and their bounds) or [s, b, heads, d]."""

    def __init__(self, config, *args, **kwargs):
        super().__init__()
        self.config = config

    def forward(self, query, key, value, attention_mask, *args, packed_seq_params=None, **kwargs):
        if packed_seq_params is None:
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out.permute(2, 0, 1, 3).flatten(2)
        bounds = packed_seq_params.cu_seqlens_q_padded.tolist()
        parts = []
        for first, last in zip(bounds[:-1], bounds[1:], strict=True):
            q, k, v = (x[first:last].transpose(0, 1) for x in (query, key, value))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            parts.append(out.transpose(0, 1))
        return torch.cat(parts).flatten(1)


def make_transformer_config(hf, **changes) -> TransformerConfig:
    settings = dict(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        ffn_hidden_size=hf.intermediate_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=hf.head_dim,
        layernorm_epsilon=hf.rms_norm_eps,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        qk_layernorm=True,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        pipeline_dtype=torch.float32,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # the other refuses ragged sequences, even without experts
        tensor_model_parallel_size=mpu.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=mpu.get_pipeline_model_parallel_world_size(),
        context_parallel_size=mpu.get_context_parallel_world_size(),
    )
    return TransformerConfig(**(settings | changes))


def make_gpt(hf, config, padded_vocab) -> GPTModel:
    spec = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PlainAttention
    return GPTModel(
        config,
        spec,
        vocab_size=padded_vocab,
        max_sequence_length=hf.max_position_embeddings,
        pre_process=mpu.is_pipeline_first_stage(),
        post_process=mpu.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
        rotary_base=hf.rope_parameters["rope_theta"],
        parallel_output=True,
    )


@torch.no_grad()
def load(model: GPTModel, plain: Qwen3ForCausalLM, padded_vocab: int) -> dict[str, torch.nn.Parameter]:
    """Copies this rank's part of a Qwen3; returns our parameters by the plain model's names."""
    rank, size = mpu.get_tensor_model_parallel_rank(), mpu.get_tensor_model_parallel_world_size()
    state, hf = plain.state_dict(), plain.config

    def part(x, dim=0):
        return x.chunk(size, dim)[rank]

    def vocabulary(x):
        filled = torch.cat([x, torch.full((padded_vocab - len(x), x.shape[1]), 3.0)])  # loud, if it were read
        return part(filled)

    groups, d = hf.num_key_value_heads, hf.head_dim
    wanted = {}
    if model.pre_process:
        wanted["embedding.word_embeddings.weight"] = vocabulary(state["model.embed_tokens.weight"])
    if model.post_process:
        wanted["decoder.final_layernorm.weight"] = state["model.norm.weight"]
        wanted["output_layer.weight"] = vocabulary(state["lm_head.weight"])
    for i, layer in enumerate(model.decoder.layers):
        theirs = f"model.layers.{layer.layer_number - 1}."
        q, k, v = (state[f"{theirs}self_attn.{x}_proj.weight"] for x in "qkv")
        qkv = torch.cat([q.view(groups, -1, q.shape[1]), k.view(groups, d, -1), v.view(groups, d, -1)], 1)
        gate, up = (part(state[f"{theirs}mlp.{x}_proj.weight"]) for x in ("gate", "up"))
        wanted |= {
            f"decoder.layers.{i}.self_attention.linear_qkv.weight": part(qkv).flatten(0, 1),
            f"decoder.layers.{i}.self_attention.linear_proj.weight": part(state[f"{theirs}self_attn.o_proj.weight"], 1),
            f"decoder.layers.{i}.self_attention.q_layernorm.weight": state[f"{theirs}self_attn.q_norm.weight"],
            f"decoder.layers.{i}.self_attention.k_layernorm.weight": state[f"{theirs}self_attn.k_norm.weight"],
            f"decoder.layers.{i}.input_layernorm.weight": state[f"{theirs}input_layernorm.weight"],
            f"decoder.layers.{i}.pre_mlp_layernorm.weight": state[f"{theirs}post_attention_layernorm.weight"],
            f"decoder.layers.{i}.mlp.linear_fc1.weight": torch.cat([gate, up]),
            f"decoder.layers.{i}.mlp.linear_fc2.weight": part(state[f"{theirs}mlp.down_proj.weight"], 1),
        }
    parameters = dict(model.named_parameters())
    assert parameters.keys() == wanted.keys(), parameters.keys() ^ wanted.keys()
    for name, value in wanted.items():
        parameters[name].copy_(value)
    return parameters


class CPUMegatronEngine(AugurMegatronEngine):
    """The engine with the model made above instead of a bridge's, and no optimizer."""

    def __init__(self, model_path: str, padded_vocab: int = VOCAB, fp8=None, **engine):
        settings = dict(
            strategy="megatron",
            sequence_parallel=False,
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=2,
            infer_micro_batch_size_per_gpu=2,
            max_token_len_per_gpu=64,
            infer_max_token_len_per_gpu=64,
        )
        model_config = HFModelConfig(path=model_path, load_tokenizer=False)
        object.__setattr__(model_config, "tokenizer", SimpleNamespace(pad_token_id=0))
        super().__init__(model_config, McoreEngineConfig(**(settings | engine)), None, None)
        self.padded_vocab = padded_vocab
        self.initialize()

    def initialize(self):
        hf = self.model_config.hf_config
        self.tf_config = make_transformer_config(hf)
        model = make_gpt(hf, self.tf_config, self.padded_vocab)
        model.to(torch.cuda.current_device())
        plain = Qwen3ForCausalLM.from_pretrained(self.model_config.local_path)
        self.parameters = load(model, plain, self.padded_vocab)
        self.module = [model]


def loss_function(loss_mode="augur", **changes):
    return partial(ppo_loss, config=actor_config(loss_mode, **changes))


__all__ = ["CPUMegatronEngine", "loss_function", "mpu", "verl_cpu"]
