#!/usr/bin/env bash
# Trains Qwen3-30B-A3B-Base with the predictive mask and the paper's hyperparameters, in FP8, through verl on Ray with
# Megatron and vLLM.
#
#   qwen3_30b_a3b_fp8.sh NODES e2e|rollout MODEL TRAIN.parquet VAL.parquet [key=value...]
#
# e2e: FP8 in Megatron and in vLLM; rollout: in vLLM alone. The paper took 4 NODES of 8 GPUs. On each:
# `pip install augur-rl 'verl[vllm,megatron]>=0.9,<0.10'`. Start Ray on the first with `ray start --head`, on the others
# with `ray start --address=FIRST:6379`, and run this on the first. TRAIN: DAPO-Math-17k, VAL: AIME24 and AIME25, as
# verl's examples/data_preprocess write them.
#
# The tight threshold: actor_rollout_ref.actor.clip_ratio_low=0.05 actor_rollout_ref.actor.clip_ratio_high=0.05
set -euo pipefail
if [ $# -lt 5 ] || [[ ! $2 =~ ^(e2e|rollout)$ ]]; then
  sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
nodes=$1 precision=$2 model=$3 train=$4 val=$5
shift 5

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
  data.train_batch_size=128
  data.filter_overlong_prompts=True
)
actor=(
  model_engine=megatron
  algorithm.adv_estimator=grpo
  actor_rollout_ref.model.path="$model"
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.ppo_epochs=1
  actor_rollout_ref.actor.ppo_mini_batch_size=16
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480
  actor_rollout_ref.actor.loss_agg_mode=token-mean
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0
)
overrides=actor_rollout_ref.actor.megatron.override_transformer_config
megatron=(
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1
  actor_rollout_ref.actor.megatron.context_parallel_size=1
  actor_rollout_ref.actor.megatron.expert_model_parallel_size=8
  actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1
  actor_rollout_ref.actor.megatron.param_offload=True
  actor_rollout_ref.actor.megatron.optimizer_offload=True
  "$overrides.recompute_granularity=full"
  "$overrides.recompute_method=uniform"
  "$overrides.recompute_num_layers=1"
  "+$overrides.moe_router_dtype=fp32"
)
rollout=(
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.quantization=fp8
  actor_rollout_ref.rollout.n=16
  actor_rollout_ref.rollout.tensor_model_parallel_size=2
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.val_kwargs.n=16
  actor_rollout_ref.rollout.val_kwargs.do_sample=True
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0
)
if [ "$precision" = e2e ]; then
  megatron+=(
    "+$overrides.fp8=e4m3"
    "+$overrides.fp8_recipe=blockwise"
    +actor_rollout_ref.actor.optim.override_optimizer_config.fp8_recipe=blockwise
  )
fi
trainer=(
  trainer.nnodes="$nodes"
  trainer.n_gpus_per_node=8
  trainer.project_name=augur
  trainer.experiment_name="qwen3-30b-a3b-fp8-$precision-predictive"
  "trainer.logger=[console,tensorboard]"
  trainer.test_freq=10
  trainer.save_freq=50
  trainer.total_epochs=1
)
exec python3 -m verl.trainer.main_ppo "${mask[@]}" "${data[@]}" "${actor[@]}" "${megatron[@]}" "${rollout[@]}" \
  "${trainer[@]}" "$@"
