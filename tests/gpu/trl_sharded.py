"""AugurGRPOTrainer with sharded weights, one process: python tests/gpu/trl_sharded.py WORK

Trains the same model whole, with FSDP2, FSDP1 and DeepSpeed's ZeRO-3, each in a process of its own, in float32, so that
the recorded support and the trainer's agree to rounding at the first update if every part of the head was read whole.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from datasets import Dataset

import common
from augur.trl import AugurGRPOConfig, AugurGRPOTrainer

FSDP = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}
DISTRIBUTED = {"whole": "NO", "fsdp2": "FSDP", "fsdp1": "FSDP", "zero3": "DEEPSPEED"}
KINDS = {
    "whole": {},
    "fsdp2": {"fsdp": True, "fsdp_config": {"version": 2, **FSDP}},
    "fsdp1": {"fsdp": True, "fsdp_config": {"version": 1, **FSDP}},
    "zero3": {
        "deepspeed": {
            "zero_optimization": {"stage": 3},
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "zero_allow_untested_optimizer": True,
        }
    },
}


def one_process() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    os.environ |= dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)


def train(kind: str, work: Path, steps: int, shape: str) -> dict:
    if kind != "whole":
        one_process()
    config = AugurGRPOConfig(
        output_dir=str(work / f"run-{kind}"),
        per_device_train_batch_size=16,
        num_generations=8,
        steps_per_generation=2,
        gradient_accumulation_steps=1,
        max_completion_length=32,
        max_steps=steps,
        learning_rate=1e-4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        gradient_checkpointing=False,
        bf16=False,
        one_pass=kind == "whole",
        use_cpu=not torch.cuda.is_available(),
        model_init_kwargs={"dtype": "float32"},
        seed=3,
        **KINDS[kind],
    )

    trainer = AugurGRPOTrainer(
        model=str(work / f"model-{shape}"),
        reward_funcs=common.reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": common.prompts(64)}),
    )
    trainer.train()
    return common.mask_figures(trainer) | {
        "distributed_type": trainer.accelerator.distributed_type.value,
        "loss_last": common.history(trainer, "loss")[-1],
        "model": type(trainer.model_wrapped).__name__,
    }


def start(kind: str, options: argparse.Namespace) -> subprocess.Popen:
    command = [sys.executable, __file__, str(options.work), "--kind", kind]
    command += ["--steps", str(options.steps), "--shape", options.shape]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


if __name__ == "__main__":
    options = common.arguments(__doc__, **{"--kind": dict(choices=KINDS), "--kinds": dict(default=",".join(KINDS))})
    if options.kind:
        print("RESULT", json.dumps(train(options.kind, options.work, options.steps, options.shape)), flush=True)
        sys.exit(0)
    report = common.Report("trl_sharded")
    common.make_model(options.work / f"model-{options.shape}", options.shape, torch.float32)
    running = {kind: start(kind, options) for kind in options.kinds.split(",")}  # at once: times are not the point here
    for kind, process in running.items():
        output, _ = process.communicate()
        (options.work / f"{kind}.log").write_text(output)
        lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
        report.check(f"{kind} trains", process.returncode == 0 and bool(lines))
        if not lines:
            print("\n".join(output.splitlines()[-25:]))
            continue
        figures = json.loads(lines[0].removeprefix("RESULT "))
        report.figures(kind=kind, **figures)
        report.check(f"weights are held as asked for: {kind}", figures["distributed_type"] == DISTRIBUTED[kind])
        report.check_mask(figures, kind == "whole", outside=0.0)
        report.check("the support is the trainer's own to rounding", figures["divergence_first"] < 1e-5)
        report.check("the policy moves", figures["divergence_most"] > 1e-4)
    report.end()
