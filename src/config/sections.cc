// The field list: every configuration key with its description and limits.
#include "config/config.h"

namespace augur {

void RunSection::Fields(FieldList& list) {
  list.Section("run", "Where and how the run is carried out.");
  list.Add("dir", dir, "The run's directory. Empty: runs/ and the name of the configuration file.")
      .MayChangeOnResume();
  list.Add("seed", seed, "Every random choice follows from it.").AtLeast(0);
  list.Add("device", device, "auto, cpu, cuda or cuda:N; auto takes a GPU where there is one.");
  list.Add("threads", threads, "CPU threads; 0 takes all cores.").AtLeast(0).AtMost(1024);
  list.Add("deterministic", deterministic,
           "Take only kernels that give the same bits at every run; on a GPU some are slower.");
  list.Add("resume", resume,
           "auto goes on from where the run stands, never begins anew, a step or a checkpoint's path goes on "
           "from there. What that leaves behind is moved aside; the same command again goes on.")
      .MayChangeOnResume();
  list.Add("resume_changed", resume_changed,
           "Go on although the configuration, a data file or the file of reward.python differs from the "
           "checkpoint's.")
      .MayChangeOnResume();
}

void ModelSection::Fields(FieldList& list) {
  list.Section("model", "What is trained.");
  list.Add("path", path,
           "A Hugging Face directory (config.json, safetensors, tokenizer.json), or a model of the hub: "
           "Org/Name or Org/Name@REVISION.");
  list.Add("precision", precision,
           "What GEMMs are computed in; master weights are float32. fp8_rollout rounds only the rollout copy "
           "to FP8, "
           "fp8 the trainer's GEMMs too.");
}

void ModelSection::ReferenceField(FieldList& list) {
  list.Add("reference", reference,
           "The model of algorithm.kl_coef's penalty. Empty: this model as it was at the start.");
}

void LoraSection::Fields(FieldList& list) {
  list.Section("lora", "Low-rank adapters in place of training every weight (docs/training.md).");
  list.Add("rank", rank, "Rank of the adapters; 0 is off: every weight is trained.").AtLeast(0).AtMost(4096);
  list.Add("alpha", alpha, "What an adapter adds is multiplied by alpha / rank.").Above(0);
  list.Add(
      "targets", targets,
      "Which linear layers have one, by the ends of their names (q_proj, mlp.down_proj); all-linear means "
      "all, "
      "experts included.");
  list.Add("dropout", dropout,
           "Only 0: training must compute what rollouts computed, and those drop nothing.")
      .AtLeast(0);
  list.Add("modules_to_save", modules_to_save,
           "Modules that are trained whole beside the adapters: norm is the final norm.");
  list.Add(
      "adapter", adapter,
      "A directory in PEFT's format to go on from, or one of the hub: Org/Name; rank, alpha, targets and "
      "modules are then its own.");
}

void DataSection::Fields(FieldList& list) {
  list.Section("data", "Prompts, and how they become tokens.");
  list.Add("train", train,
           "JSONL or Parquet files to train on, data sets of the hub (hf://Org/Name[@REVISION][/PATH]), or "
           "tasks (task:sort:count=4096).");
  list.Add("prompt_key", prompt_key, "Column of the prompt. Empty: prompt, problem or question.");
  list.Add("answer_key", answer_key,
           "Column of the answer. Empty: reward_model.ground_truth, label, answer or solution.");
  list.Add("data_source_key", data_source_key,
           "Column that groups evaluation figures. Empty: data_source, else the file's name.");
  list.Add("prompt_template", prompt_template,
           "Text around a prompt that is plain text, with {prompt} in its place.");
  list.Add(
      "chat", chat,
      "Which prompts go through the chat format: conversations, or always (plain text as a user's message).");
  list.Add(
      "chat_format", chat_format,
      "auto takes the model's; otherwise chatml, smollm2, qwen2.5, qwen3, qwen3-instruct, llama3, llama3.1, "
      "llama3.2 or raw.");
  list.Add("thinking", thinking, "Qwen3's enable_thinking.");
  list.Add(
      "date", date,
      "\"Today Date\" of the Llama 3.1 and 3.2 formats, e.g. 26 Jul 2024; a run that must repeat sets it.");
  list.Add("max_prompt_tokens", max_prompt_tokens, "Longer prompts are dealt with as overlong says.")
      .AtLeast(1);
  list.Add("overlong", overlong,
           "What becomes of longer prompts: an error, left out, or only their last tokens kept.");
  list.Add("shuffle", shuffle, "Visit the prompts of each epoch in a random order.");
}

void RewardSection::Fields(FieldList& list) {
  list.Section("reward", "How responses are scored.");
  list.Add(
      "verifier", verifier,
      "A verifier of `augur verify`; auto chooses one by each prompt's ground truth (countdown), else by its "
      "data source, else exact.");
  list.Add("python", python,
           "A Python function that scores instead of the verifier, FILE.py:FUNCTION, with TRL's parameters "
           "(prompts, completions, **columns) or verl's (data_source, solution_str, ground_truth, "
           "extra_info). Empty: none.");
  list.Add("workers", workers, "Processes that run it while generation goes on; 0: one per core, 8 at most.")
      .AtLeast(0)
      .AtMost(1024)
      .MayChangeOnResume();
  list.Add("timeout_s", timeout_s, "Seconds it may take for one response.").Above(0).MayChangeOnResume();
  list.Add("interpreter", interpreter,
           "The Python that runs it. Empty: the one that runs Augur, or that Augur was set up with.")
      .MayChangeOnResume();
  list.Add("error_score", error_score,
           "The score of a response whose verifier or function failed; such are counted.");
  list.Add("max_errors", max_errors,
           "The share of a step's responses whose verifier or function may fail; beyond it, and where all "
           "fail, the run "
           "stops.")
      .AtLeast(0)
      .AtMost(1)
      .MayChangeOnResume();
  list.Add(
          "overlong_buffer", overlong_buffer,
          "DAPO's overlong shaping: within this many tokens of rollout.max_tokens the score falls; 0 is off.")
      .AtLeast(0);
  list.Add("overlong_penalty", overlong_penalty, "How far it has fallen at rollout.max_tokens.").AtLeast(0);
}

void RolloutSection::Fields(FieldList& list) {
  list.Section("rollout", "How responses are sampled.");
  list.Add("prompts", prompts, "Prompts in each step.").AtLeast(1);
  list.Add("group", group, "Responses to each prompt.").AtLeast(1);
  list.Add("max_tokens", max_tokens, "Most tokens in a response.").AtLeast(1);
  list.Add("temperature", temperature, "Sampling temperature; the trainer's logits are divided by it too.")
      .Above(0);
  list.Add("support", support,
           "K: how many of the most likely tokens are recorded beside the sampled one, for the mask.")
      .AtLeast(0)
      .AtMost(1024);
  list.Add("staleness", staleness,
           "How many weight versions old a rollout may be; from 1 on, generation and training overlap.")
      .AtLeast(0)
      .AtMost(1024);
  list.Add("stop", stop, "Texts that end a response.");
  list.Add("kv_precision", kv_precision,
           "What keys and values are kept as: bf16, or fp8 (a scale per token and head), in which twice as "
           "many fit "
           "on a GPU; what that adds to the mismatch is what the mask is for.");
  list.Add("replay_routing", replay_routing,
           "Of models with experts: those that computed a token at generation compute it in training too, "
           "with the "
           "weights that the router then gives them.");
  list.Add("memory_share", memory_share,
           "Share of the memory that is free when generation begins which keys and values may take; with "
           "staleness on a GPU, when the run begins.")
      .Above(0)
      .AtMost(1);
  list.Add("max_batch", max_batch, "Most sequences decoded at once; 0 takes what fits.").AtLeast(0);
}

void MaskSection::Fields(FieldList& list) {
  list.Section("mask", "Which updates may pass (docs/masks.md). `mask: NAME` is short for the preset alone.");
  list.AddField("preset", MaskPreset{&rule}, "Sets all fields; the others given change it.");
  for (const RuleField& field : RuleFields()) {
    list.AddField(field.name, MaskField{&rule, &field}, field.description);
  }
}

void AlgorithmSection::Fields(FieldList& list) {
  list.Section("algorithm", "From scores to a loss.");
  list.AddName("advantage", advantage, AdvantageNames(), AdvantageDescriptions());
  list.Add("aggregation", aggregation, "How token losses become one number.");
  list.Add("horizon", horizon, "The constant of seq-mean-token-sum-norm; 0 takes rollout.max_tokens.")
      .AtLeast(0);
  list.Add("loss", loss,
           "masked applies the section mask; gspo, cispo and tis are there to compare with and use the "
           "fields below.");
  list.Add("loss_clip_low", loss_clip_low, "gspo: the ratio is clipped below 1 - this.").AtLeast(0);
  list.Add("loss_clip_high", loss_clip_high, "gspo and cispo: the ratio is clipped above 1 + this.")
      .AtLeast(0);
  list.Add("tis_cap", tis_cap, "tis: the importance weight is cut to this.").Above(0);
  list.Add("anchor", anchor,
           "Ratios and divergences are measured from the log-probs of the rollout, or from those the trainer "
           "computes "
           "before the first update.");
  list.Add("kl_coef", kl_coef, "Weight of the KL penalty to model.reference in the loss; 0 is off.")
      .AtLeast(0);
  list.Add("kl_estimator", kl_estimator,
           "Of that penalty, with d = log ref - log pi: k1 -d, k2 d^2/2, k3 exp(d) - d - 1.");
  list.Add("entropy_bonus", entropy_bonus, "Weight of the policy's entropy in the loss; 0 is off.");
  list.Add(
          "load_balance_coef", load_balance_coef,
          "Of models with experts: weight of the load-balancing loss, as transformers computes it; 0 is off.")
      .AtLeast(0);
  list.Add("skip_equal_groups", skip_equal_groups, "Leave out groups whose scores are all equal.");
  list.Add("dynamic_sampling", dynamic_sampling, "Sample further prompts in place of such groups (DAPO).");
  list.Add("max_refills", max_refills, "How often in a step dynamic_sampling may do so.").AtLeast(1);
  list.Add("drop_truncated", drop_truncated,
           "Leave responses cut off at rollout.max_tokens out of the loss.");
}

void OptimizerFields::Fields(FieldList& list) {
  list.Add("lr", lr, "AdamW's learning rate after warm-up.").AtLeast(0);
  list.Add("warmup_steps", warmup_steps, "Steps over which it rises from 0.").AtLeast(0);
  list.Add("schedule", schedule, "What it does afterwards.");
  list.Add("min_lr_ratio", min_lr_ratio, "cosine: the share of lr left at the end.").AtLeast(0).AtMost(1);
  list.Add("beta1", beta1, "AdamW's decay of the mean gradient.").AtLeast(0).AtMost(0.999999);
  list.Add("beta2", beta2, "AdamW's decay of the mean square.").AtLeast(0).AtMost(0.999999);
  list.Add("eps", eps, "AdamW's epsilon.").Above(0);
  list.Add("weight_decay", weight_decay, "AdamW's decoupled weight decay.").AtLeast(0);
  list.Add("grad_clip", grad_clip, "Largest global norm of a gradient; 0 does not clip.").AtLeast(0);
  list.Add("optimizer_dtype", optimizer_dtype, "What AdamW's two states are kept in.");
  list.Add("gradient_dtype", gradient_dtype,
           "What gradients are added up in over micro-batches; bf16 is rounded at random, so that sums keep "
           "their mean.");
  list.Add("checkpoint_activations", checkpoint_activations,
           "Which activations the backward computes again.");
  list.Add("micro_tokens", micro_tokens,
           "Most tokens in one forward; results do not depend on it beyond rounding. A longer sequence goes "
           "alone.")
      .AtLeast(1);
  list.Add("max_bad_updates", max_bad_updates,
           "Updates skipped in a row for a loss or gradient that is not finite before the run stops.")
      .AtLeast(1)
      .MayChangeOnResume();
}

void TrainSection::Fields(FieldList& list) {
  list.Section("train", "The updates.");
  list.Add("steps", steps, "Steps of rollout and training.").AtLeast(0).MayChangeOnResume();
  list.Add("minibatch", minibatch,
           "Prompts (with all their responses) in one update; 0 takes all of rollout.prompts.")
      .AtLeast(0);
  list.Add("epochs", epochs, "Passes over each step's responses.").AtLeast(1);
  optimizer.Fields(list);
}

void SftSection::Fields(FieldList& list) {
  list.Section("sft", "The updates: prompts in, answers out.");
  list.Add(
      "from_scratch", from_scratch,
      "Begin with random weights that follow from run.seed; model.path then needs only config.json and a "
      "tokenizer.");
  list.Add("steps", steps, "Updates.").AtLeast(0).MayChangeOnResume();
  list.Add("batch", batch, "Sequences in each update.").AtLeast(1).AtMost(1 << 20);
  optimizer.Fields(list);
}

void ParallelSection::Fields(FieldList& list) {
  list.Section("parallel", "Several processes, started by torchrun or srun (docs/scaling.md).");
  list.Add("shard", shard,
           "What the ranks divide among themselves: none (each has all of it), states (master weights and "
           "AdamW's states, and gradients as they are made), full (the weights too, gathered while they "
           "are used), or auto, the first of these with which the model fits.")
      .MayChangeOnResume();
  list.Add(
          "replicas", replicas,
          "Divide it within so many groups of neighbouring ranks, each of which has all of it: the number of "
          "nodes keeps what is gathered within a node.")
      .AtLeast(1)
      .MayChangeOnResume();
  list.Add("timeout_s", timeout_s, "Seconds a rank waits for the others before the run ends.")
      .Above(0)
      .MayChangeOnResume();
}

void CheckpointSection::Fields(FieldList& list) {
  list.Section("checkpoint", "What survives a crash.");
  list.Add("every", every, "Steps between checkpoints; 0 writes one at the end only.")
      .AtLeast(0)
      .MayChangeOnResume();
  list.Add("keep", keep, "How many of the newest stay; 0 keeps all.").AtLeast(0).MayChangeOnResume();
}

void EvalSection::Fields(FieldList& list) {
  list.Section("eval", "Evaluation during the run; prompts are read as the section data says.");
  list.Add("files", files, "JSONL or Parquet files; none: no evaluation.");
  list.Add("every", every, "Steps between evaluations; 0: only at the end.").AtLeast(0).MayChangeOnResume();
  list.Add("at_start", at_start, "Evaluate before the first step too.").MayChangeOnResume();
  list.Add("samples", samples, "Responses to each prompt.").AtLeast(1);
  list.Add("prompts", prompts, "How many prompts of each file, from its beginning; 0: all.").AtLeast(0);
  list.Add("temperature", temperature, "0 is greedy.").AtLeast(0);
  list.Add("top_p", top_p, "Sample from the most likely tokens that hold this mass; 1 is off.")
      .Above(0)
      .AtMost(1);
  list.Add("top_k", top_k, "Sample from this many most likely tokens; 0 is off.").AtLeast(0);
  list.Add("max_tokens", max_tokens, "Most tokens in a response; 0 takes rollout.max_tokens.").AtLeast(0);
}

void AuditSection::Fields(FieldList& list) {
  list.Section("audit", "Predicted against realised change of divergence, during the run.");
  list.Add("every", every, "Steps between audits; 0 is off.").AtLeast(0).MayChangeOnResume();
}

void LogSection::Fields(FieldList& list) {
  list.Section("log", "What is shown and kept beside metrics.jsonl.");
  list.Add("console", console, "Progress on the terminal, or plain lines elsewhere.").MayChangeOnResume();
  list.Add("tensorboard", tensorboard, "Write TensorBoard events to the run's directory.")
      .MayChangeOnResume();
}

void LogSection::TrainFields(FieldList& list) {
  list.Add("wandb", wandb,
           "A Weights & Biases project that the metrics and the report are sent to; needs the package wandb. "
           "Empty: none.")
      .MayChangeOnResume();
  list.Add("tokens", tokens, "Responses of each step kept token by token for the report's viewer.")
      .AtLeast(0)
      .MayChangeOnResume();
}

FieldList FieldsOf(RlConfig& config) {
  FieldList list;
  config.run.Fields(list);
  config.model.Fields(list);
  config.model.ReferenceField(list);
  config.lora.Fields(list);
  config.data.Fields(list);
  config.reward.Fields(list);
  config.rollout.Fields(list);
  config.mask.Fields(list);
  config.algorithm.Fields(list);
  config.train.Fields(list);
  config.parallel.Fields(list);
  config.checkpoint.Fields(list);
  config.eval.Fields(list);
  config.audit.Fields(list);
  config.log.Fields(list);
  config.log.TrainFields(list);
  return list;
}

FieldList FieldsOf(SftConfig& config) {
  FieldList list;
  config.run.Fields(list);
  config.model.Fields(list);
  config.lora.Fields(list);
  config.data.Fields(list);
  config.sft.Fields(list);
  config.parallel.Fields(list);
  config.checkpoint.Fields(list);
  config.log.Fields(list);
  return list;
}

}  // namespace augur
