"""TRL's AsyncGRPOTrainer under a mask with a real vLLM server next to it: python tests/gpu/trl_async.py WORK

The rollout worker generates in a process of its own while the trainer updates, so tokens are some weight syncs old.
Trainer and server share the GPU, as in trl_vllm_serve.py. TRL's kernel for packed samples is one more download; torch's
own flash attention stands in for it.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker, packing
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop

import common
import trl_vllm_serve
from augur.trl.async_grpo import AugurAsyncGRPOConfig, AugurAsyncGRPOTrainer
from augur.trl.async_rollout import RecordingLoop, unpack


def as_message(tokenizer: Any, ids: list[int], **_: Any) -> dict:  # noqa: ANN401
    """In place of TRL's parser of tool calls, for which newer transformers want a template in the tokenizer."""
    return {"role": "assistant", "content": tokenizer.decode(ids)}


async_rollout_worker.parse_response = as_message


class Keep:
    """Writes the server's answers to a file, one line each, before anything is done to them."""

    def __init__(self, *, answers: str, **kwargs: Any) -> None:  # noqa: ANN401
        self._answers = Path(answers).open("a")
        super().__init__(**kwargs)

    async def _post(self, path: str, *args: Any, **kwargs: Any) -> dict:  # noqa: ANN401
        answer = await super()._post(path, *args, **kwargs)
        for choice in answer.get("choices", []):
            print(json.dumps([choice["token_ids"], choice["logprobs"]]), file=self._answers, flush=True)
        return answer


class KeepingLoop(RecordingLoop, Keep, _AsyncRolloutLoop):
    """What the worker's process runs."""


class KeepingWorker(AsyncRolloutWorker):
    _loop_cls = KeepingLoop
    answers: str

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401
        super().__init__(answers=self.answers, **settings)


class FlashAttention:
    def flash_attn_varlen_func(  # as TRL calls it
        self, q, k, v, q_ends, k_ends, longest_q, longest_k, *, softmax_scale, causal, window_size
    ) -> torch.Tensor:
        assert window_size == (-1, -1)
        return torch.ops.aten._flash_attention_forward(
            q, k, v, q_ends, k_ends, int(longest_q), int(longest_k), 0.0, causal, False, scale=softmax_scale
        )[0]


def compare(samples: Iterable[dict], answers: dict[tuple, dict]) -> tuple[int, float]:
    """The samples' supports against the server's answers: log-probs compared and the largest difference."""
    count, worst = 0, 0.0
    for sample in samples:
        sampled = torch.as_tensor(sample["completion_mask"]).bool()
        tokens = torch.as_tensor(sample["input_ids"])[sampled].tolist()
        ids, logprobs = (x[sampled].tolist() for x in unpack(torch.as_tensor(sample["old_log_probs"])))
        if tuple(tokens) not in answers:
            return count, float("inf")
        rows = trl_vllm_serve.candidates(answers[tuple(tokens)])
        for token, row, ours_ids, ours in zip(tokens, rows, ids, logprobs, strict=True):
            pairs = {i: x for i, x in zip(ours_ids, ours, strict=True) if i >= 0}
            if pairs.keys() != row.keys() or ours_ids[0] != token:
                return count, float("inf")
            count += len(row)
            worst = max([worst, *(abs(pairs[i] - row[i]) for i in row)])
    return count, worst


def make_trainer(options: Any, model: str) -> AugurAsyncGRPOTrainer:  # noqa: ANN401
    tokenizer = common.make_tokenizer(common.SHAPES[options.shape]["vocab_size"])
    tokenizer.response_schema = {
        "type": "object",
        "properties": {
            "role": {"const": "assistant"},
            "content": {"type": "string", "x-regex": r"^(.*?)(?:<eos>)?$"},
        },
    }
    settings = AugurAsyncGRPOConfig(
        output_dir=str(options.work / "run"),
        dtype="bfloat16",
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=options.length,
        max_steps=options.steps,
        weight_sync_steps=2,
        max_staleness=4,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        gradient_checkpointing=False,
        vllm_server_base_url=f"http://127.0.0.1:{trl_vllm_serve.PORT}",
        vllm_server_timeout=300,
        weight_sync_timeout=120,
        request_timeout=120,
        support_size=20,
    )
    rows = [[{"role": "user", "content": text}] for text in common.prompts(256)]
    return AugurAsyncGRPOTrainer(
        model=model,
        reward_funcs=common.reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": rows}),
        processing_class=tokenizer,
    )


if __name__ == "__main__":
    options = common.arguments(
        __doc__, **{"--length": dict(type=int, default=64), "--eager": dict(action="store_true")}
    )
    report = common.Report("trl_async")
    model = common.make_model(options.work / f"model-{options.shape}", options.shape)
    server = trl_vllm_serve.start_server(model, options.work / "async-server.log", options.eager)
    trained: list[dict] = []
    pack = packing.TreeRow.pack
    packing.TreeRow.pack = lambda row: (trained.extend(row.samples), pack(row))[1]
    packing._flash_attn = FlashAttention
    async_grpo_trainer.AsyncRolloutWorker = KeepingWorker
    KeepingWorker.answers = str(options.work / "answers.jsonl")
    Path(KeepingWorker.answers).unlink(missing_ok=True)
    try:
        trainer = make_trainer(options, model)
        trainer.train()
    finally:
        server.terminate()
        server.wait(30)
    lines = Path(KeepingWorker.answers).read_text().splitlines()
    answers = {tuple(tokens): logprobs for tokens, logprobs in map(json.loads, lines)}
    count, worst = compare(trained, answers)
    mask = {name: common.history(trainer, f"mask/{name}") for name in ("outside", "divergence", "masked", "missing")}
    staleness = common.history(trainer, "sample/staleness_max")
    report.figures(
        steps=trainer.state.global_step,
        samples=len(trained),
        compared=count,
        difference=worst,
        staleness=staleness,
        weights=trainer.model_version,
        **mask,
    )
    report.check(f"{options.steps} steps", trainer.state.global_step == options.steps)
    report.check("every token has its support (mask/missing = 0)", max(mask["missing"]) == 0)
    report.check("mask/outside at the first update is at most 0.01", mask["outside"][0] <= 0.01)
    report.check("the supports are the server's own answers", count > 1000 and worst == 0)
    report.check("samples older than the newest weights were trained on", max(staleness) >= 1)
    report.end()
