"""Whole steps of verl's trainer with its FSDP2 worker and its vLLM server: python tests/gpu/verl_fsdp.py WORK

verl.trainer.main_ppo on one GPU: Ray, the rollout by vLLM behind verl's agent loops, the weights' way from the trainer
to the server, two updates a step. The model is random and small.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas

import common

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "augur.verl",
    "HYDRA_FULL_ERROR": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_DEDUP_LOGS": "0",
    "RAY_prestart_worker_first_driver": "0",  # else a process for each of num_cpus, most of which nobody uses
}


def write_data(path: Path) -> str:
    rows = [
        {
            "data_source": "words",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": i},
        }
        for i, text in enumerate(common.prompts(64, 16))
    ]
    pandas.DataFrame(rows).to_parquet(path)
    return str(path)


def overrides(model: str, data: str, work: Path, steps: int, loss_mode: str, strategy: str) -> list[str]:
    return [
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.actor.policy_loss.loss_mode={loss_mode}",
        "actor_rollout_ref.actor.clip_ratio_low=0.15",
        "actor_rollout_ref.actor.clip_ratio_high=0.15",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "algorithm.rollout_correction.bypass_mode=True",
        f"data.train_files={data}",
        f"data.val_files={data}",
        "data.train_batch_size=8",
        "data.max_prompt_length=64",
        "data.max_response_length=64",
        f"actor_rollout_ref.model.path={model}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",  # flash-attn is one more package
        "actor_rollout_ref.model.use_remove_padding=True",
        f"actor_rollout_ref.actor.strategy={strategy}",
        "actor_rollout_ref.actor.optim.lr=1e-5",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.2",
        # vLLM's measuring of free memory fails where others on the GPU give some back meanwhile
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=4000000000",
        "actor_rollout_ref.rollout.enforce_eager=True",
        "actor_rollout_ref.rollout.max_model_len=128",
        "actor_rollout_ref.rollout.max_num_seqs=64",
        "actor_rollout_ref.rollout.max_num_batched_tokens=2048",
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=256",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "reward.num_workers=1",
        f"reward.custom_reward_function.path={HERE / 'verl_reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "data.dataloader_num_workers=0",
        "ray_kwargs.ray_init.num_cpus=16",  # what the actors ask for, not cores
        "+ray_kwargs.ray_init.include_dashboard=False",
        "+ray_kwargs.ray_init._node_ip_address=127.0.0.1",
        "+ray_kwargs.ray_init.object_store_memory=1000000000",
        "trainer.logger=[console]",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        f"trainer.total_training_steps={steps}",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={work / 'checkpoints'}",
    ]


def steps_of(log: str) -> list[dict[str, float]]:
    """verl's console lines: step:1 - name:value - name:value."""
    steps = []
    for line in log.splitlines():
        found = re.search(r"step:\d+ - .*", line)
        if found:
            pairs = (part.rsplit(":", 1) for part in found.group().split(" - ") if ":" in part)
            steps.append({name.strip(): float(re.sub(r"np\.\w+\(|\)", "", value)) for name, value in pairs})
    return steps


if __name__ == "__main__":
    options = common.arguments(__doc__, **{"--loss-mode": dict(default="augur"), "--strategy": dict(default="fsdp2")})
    report = common.Report("verl_fsdp")
    model = common.make_model(options.work / "model-small", "small")
    data = write_data(options.work / "words.parquet")
    command = [sys.executable, "-m", "verl.trainer.main_ppo"]
    command += overrides(model, data, options.work, options.steps, options.loss_mode, options.strategy)
    environment = os.environ | ENVIRONMENT
    with (options.work / "verl.log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    text = (options.work / "verl.log").read_text(errors="replace")
    steps = steps_of(text)
    report.check(f"verl ends with 0 (it ended with {done.returncode})", done.returncode == 0)
    report.check(f"{options.steps} whole steps (there were {len(steps)})", len(steps) == options.steps)
    wanted = (
        "actor/mask/",
        "actor/pg_loss",
        "actor/pg_clipfrac",
        "timing_s/",
        "response_length/mean",
        "actor/grad_norm",
    )
    for i, step in enumerate(steps):
        report.figures(step=i + 1, **{name: value for name, value in step.items() if name.startswith(wanted)})
    if not steps:
        print("\n".join(text.splitlines()[-60:]))
    elif options.loss_mode.startswith("augur"):
        report.check("every token has its support", all(step["actor/mask/missing"] == 0 for step in steps))
        report.check("mask/outside of the first step is at most 0.01", steps[0]["actor/mask/outside"] <= 0.01)
    report.end()
