#!/usr/bin/env bash
# Trains Qwen3-4B-Base with the predictive mask and the paper's hyperparameters, through verl on Ray.
#
#   qwen3_4b.sh NODES MODEL TRAIN.parquet VAL.parquet [key=value...]
#
# NODES machines of 8 GPUs, with `pip install augur-rl 'verl[vllm,fsdp]>=0.9,<0.10'` on each. Start Ray on the first with
# `ray start --head`, on the others with `ray start --address=FIRST:6379`, and run this on the first. One machine needs
# no Ray started before. TRAIN: DAPO-Math-17k, VAL: AIME24 and AIME25, as verl's examples/data_preprocess write them.
#
# Other rules: actor_rollout_ref.actor.policy_loss.loss_mode=augur_dppo_topk_kl, augur_predictive_kl_exact, ...
# The tight threshold: actor_rollout_ref.actor.clip_ratio_low=0.05 actor_rollout_ref.actor.clip_ratio_high=0.05
set -euo pipefail
if [ $# -lt 4 ]; then
  sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
nodes=$1 model=$2 train=$3 val=$4
shift 4

mask=(
  actor_rollout_ref.actor.policy_loss.loss_mode=augur_predictive_kl_aggregated
  actor_rollout_ref.actor.clip_ratio_low=0.15  # delta for negative advantages
  actor_rollout_ref.actor.clip_ratio_high=0.15 # delta for positive ones
  +actor_rollout_ref.rollout.custom.augur.support_size=20
  # The ratio is taken against the policy that sampled, and that policy is softmax(logits / temperature).
  actor_rollout_ref.rollout.calculate_log_probs=True
  algorithm.rollout_correction.bypass_mode=True
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.top_p=1.0
  actor_rollout_ref.rollout.top_k=-1
)
data=(
  data.train_files="$train"
  data.val_files="$val"
  data.max_prompt_length=2048
  data.max_response_length=8192
  data.train_batch_size=64
  data.filter_overlong_prompts=True
)
actor=(
  algorithm.adv_estimator=grpo
  actor_rollout_ref.model.path="$model"
  actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.ppo_epochs=1
  actor_rollout_ref.actor.ppo_mini_batch_size=16
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480
  actor_rollout_ref.actor.loss_agg_mode=token-mean
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0
)
rollout=(
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.val_kwargs.n=16
  actor_rollout_ref.rollout.val_kwargs.do_sample=True
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0
)
trainer=(
  trainer.nnodes="$nodes"
  trainer.n_gpus_per_node=8
  trainer.project_name=augur
  trainer.experiment_name=qwen3-4b-predictive
  "trainer.logger=[console,tensorboard]"
  trainer.test_freq=10
  trainer.save_freq=50
  trainer.total_epochs=1
)
exec python3 -m verl.trainer.main_ppo "${mask[@]}" "${data[@]}" "${actor[@]}" "${rollout[@]}" "${trainer[@]}" "$@"
