"""verl's training worker on CPU: a platform for it, a tiny model, and batches with a support. Import this first.

With AUGUR_TEST_DEVICE=cuda, which tests/gpu sets, all of it runs on the GPU under verl's own platform.
"""

import contextlib
import os
import socket
from functools import partial
from types import SimpleNamespace

import torch
import verl
from packaging.version import Version
from verl.plugin.platform import PlatformBase, set_platform

ON_CUDA = os.environ.get("AUGUR_TEST_DEVICE") == "cuda"
_DEVICE_MODULE = SimpleNamespace(
    max_memory_allocated=lambda *_: 0,
    max_memory_reserved=lambda *_: 0,
    memory_allocated=lambda *_: 0,
    memory_reserved=lambda *_: 0,
    mem_get_info=lambda *_: (0, 0),
    empty_cache=lambda: None,
    synchronize=lambda *_: None,
    current_device=lambda: "cpu",
    get_device_name=lambda: "CPU",
    is_available=lambda: True,
    device_count=lambda: 0,
    manual_seed=torch.manual_seed,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
)


class PlatformCPU(PlatformBase):
    """What verl asks of a device, answered by the CPU."""

    device_name = "cpu"
    vendor_name = "test"
    device_module = _DEVICE_MODULE
    is_available = device_count = is_ipc_supported = lambda self: True
    current_device = lambda self: "cpu"  # noqa: E731
    set_device = synchronize = set_allocator_settings = lambda self, *_: None
    empty_cache = profiler_start = profiler_stop = cudart = lambda self: None
    manual_seed = manual_seed_all = lambda self, seed: torch.manual_seed(seed)
    get_device_capability = lambda self, *_: (None, None)  # noqa: E731
    communication_backend_name = lambda self: "gloo"  # noqa: E731
    visible_devices_envvar = lambda self: "NO_DEVICES"  # noqa: E731
    nvtx_range = lambda self, msg: contextlib.nullcontext()  # noqa: E731
    ray_resource_name = lambda self: "CPU"  # noqa: E731
    ray_noset_envvars = lambda self: []  # noqa: E731


if not ON_CUDA:
    set_platform(PlatformCPU())
if Version(verl.__version__) < Version("0.9.1"):  # which unpads with flash-attn, or as on an NPU
    from verl.utils import attention_utils, npu_flash_attn_utils

    names = ("index_first_axis", "pad_input", "rearrange", "unpad_input")
    attention_utils._get_attention_functions = lambda: tuple(getattr(npu_flash_attn_utils, name) for name in names)

from tensordict import TensorDict  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import (  # noqa: E402
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.engine_workers import TrainingWorker  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402
from verl.workers.utils.padding import left_right_2_no_padding  # noqa: E402

import augur.verl  # noqa: E402
from mask_data import record_support  # noqa: E402

VOCAB, PROMPT, RESPONSE = 64, 6, 8
ADAM_EPSILON = 1e-5  # without it, AdamW makes whole steps of what rounding leaves of a gradient that is nearly 0
EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu", vendor="test")(
    augur.verl.AugurFSDPEngine
)


def save_model(directory) -> str:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.save_pretrained(directory)
    return str(directory)


def actor_config(loss_mode="augur", **changes) -> FSDPActorConfig:
    settings = dict(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=2,
        clip_ratio_low=0.05,
        clip_ratio_high=0.05,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode),
        fsdp_config=FSDPEngineConfig(forward_only=False),
    )
    return FSDPActorConfig(**(settings | changes))


class CPUTrainingWorker(TrainingWorker):
    """verl would name the CPU twice in the backend string, so the group is made before it looks."""

    def __init__(self, config: TrainingWorkerConfig):
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if ON_CUDA else "gloo")
        super().__init__(config)


def make_worker(model_path, config: FSDPActorConfig, **engine) -> TrainingWorker:
    worker = CPUTrainingWorker(worker_config(model_path, **engine))
    worker.reset()
    worker.set_loss_fn(partial(ppo_loss, config=config))
    return worker


def worker_config(model_path, remove_padding=False, lr=1e-2, **engine) -> TrainingWorkerConfig:
    settings = dict(
        strategy="fsdp2",
        forward_only=False,
        use_torch_compile=False,
        micro_batch_size_per_gpu=2,
        infer_micro_batch_size_per_gpu=2,
        max_token_len_per_gpu=64,
        infer_max_token_len_per_gpu=64,
        mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=model_path,
            load_tokenizer=False,
            use_remove_padding=remove_padding,
            enable_gradient_checkpointing=False,
            override_config={"attn_implementation": "eager"},
        ),
        engine_config=FSDPEngineConfig(**(settings | engine)),
        optimizer_config=FSDPOptimizerConfig(
            lr=lr,
            lr_warmup_steps=0,
            total_training_steps=100,
            weight_decay=0.0,
            override_optimizer_config={"eps": ADAM_EPSILON},
        ),
    )


def make_batch(model, rows=4, seed=0, temperature=1.0, drift=0.0, equal=False, k=20):
    """Padded prompts and responses with the support of a behaviour policy `drift` away from the model."""
    g = torch.Generator().manual_seed(seed)
    prompt_lengths = torch.randint(2, PROMPT + 1, (rows,), generator=g)
    response_lengths = torch.randint(3, RESPONSE + 1, (rows,), generator=g)
    if equal:
        prompt_lengths, response_lengths = torch.full((rows,), PROMPT), torch.full((rows,), RESPONSE)
    width = PROMPT + RESPONSE
    position = torch.arange(width)
    first, last = PROMPT - prompt_lengths[:, None], PROMPT + response_lengths[:, None]
    attention = ((position >= first) & (position < last)).long()
    tokens = torch.randint(2, VOCAB, (rows, width), generator=g) * attention
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    ids = torch.full((rows, width, k + 1), -1, dtype=torch.int32)
    logprobs = torch.full((rows, width, k + 1), -torch.inf)
    old = torch.zeros(rows, RESPONSE)
    # Each response is drawn from the behaviour, token by token, so that the support holds what was sampled.
    for row in range(rows):
        for t in range(PROMPT, PROMPT + response_lengths[row]):
            with torch.no_grad():
                logits = model(
                    input_ids=tokens[row : row + 1, :t],
                    attention_mask=attention[row : row + 1, :t],
                    position_ids=positions[row : row + 1, :t],
                ).logits[:, -1]
            row_ids, row_logprobs = record_support(logits.double() / temperature, k, drift, g)
            tokens[row, t] = row_ids[0, 0]
            ids[row, t - 1], logprobs[row, t - 1] = row_ids[0].int(), row_logprobs[0].float()
            old[row, t - PROMPT] = row_logprobs[0, 0]
    response_mask = attention[:, PROMPT:].clone()
    advantages = torch.randn(rows, 1, generator=g).expand(rows, RESPONSE) * response_mask
    return TensorDict(
        {
            "prompts": tokens[:, :PROMPT].clone(),
            "responses": tokens[:, PROMPT:].clone(),
            "input_ids": tokens,
            "attention_mask": attention,
            "position_ids": positions,
            "response_mask": response_mask,
            "advantages": advantages,
            "old_log_probs": old,
            "teacher_ids": ids,
            "teacher_logprobs": logprobs,
        },
        batch_size=rows,
    )


def random_batch(rows: int, tokens: int, vocab: int, k=20) -> TensorDict:
    """Responses of `tokens` random tokens to prompts as long, with any support: for timing alone."""
    g = torch.Generator().manual_seed(0)
    width = 2 * tokens
    ids = torch.randint(vocab, (rows, width), generator=g)
    support_ids = torch.randint(vocab, (rows, width, k + 1), generator=g, dtype=torch.int32)
    support_ids[:, :-1, 0] = ids[:, 1:]
    logprobs = torch.full((rows, width, k + 1), -4.0)
    mask = torch.ones(rows, tokens, dtype=torch.int64)
    return TensorDict(
        {
            "prompts": ids[:, :tokens].clone(),
            "responses": ids[:, tokens:].clone(),
            "input_ids": ids,
            "attention_mask": torch.ones(rows, width, dtype=torch.int64),
            "position_ids": torch.arange(width).expand(rows, width).clone(),
            "response_mask": mask,
            "advantages": torch.randn(rows, 1, generator=g).expand(rows, tokens).clone(),
            "old_log_probs": torch.full((rows, tokens), -4.0),
            "teacher_ids": support_ids,
            "teacher_logprobs": logprobs,
        },
        batch_size=rows,
    )


def as_verl(batch: TensorDict, temperature=1.0, **flags) -> TensorDict:
    """The batch as verl's trainer sends it to the actor."""
    data = left_right_2_no_padding(batch.clone())
    tu.assign_non_tensor(data, **_flags(len(batch), {"temperature": temperature} | flags))
    return data


def _flags(rows: int, changes: dict) -> dict:
    settings = dict(
        temperature=1.0,
        calculate_entropy=False,
        global_batch_size=rows,
        mini_batch_size=rows,
        epochs=1,
        seed=0,
        dataloader_kwargs={"shuffle": False},
    )
    return settings | changes


def as_verl_v1(batch: TensorDict, **flags) -> TensorDict:
    """The batch as verl's TransferQueue gives it back: ragged tensors without padding, and a dense support where all
    sequences are as long."""

    def ragged(parts):
        return torch.nested.as_nested_tensor(list(parts), layout=torch.jagged)

    used = batch["attention_mask"].bool()
    fields = {
        "prompts": ragged(x[m] for x, m in zip(batch["prompts"], used[:, :PROMPT], strict=True)),
        **{key: ragged(x[m] for x, m in zip(batch[key], used, strict=True)) for key in ("input_ids", "position_ids")},
    }
    for key in ("responses", "response_mask", "advantages", "old_log_probs"):
        fields[key] = ragged(x[m] for x, m in zip(batch[key], used[:, PROMPT:], strict=True))
    fields["loss_mask"] = fields["response_mask"].clone()
    for key in ("teacher_ids", "teacher_logprobs"):
        parts = [x[m] for x, m in zip(batch[key], used, strict=True)]
        equal = all(len(part) == len(parts[0]) for part in parts)
        fields[key] = torch.stack(parts) if equal else ragged(parts)
    data = TensorDict(fields, batch_size=len(batch))
    tu.assign_non_tensor(data, **_flags(len(batch), flags))
    return data


def one_process(port: int) -> None:
    """A group of one; port 0 takes a free one."""
    if port == 0:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
    os.environ |= dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
