// The configuration of `augur train` and `augur sft`: one list of keys per section. A key is declared once,
// with its type, name, default, limits and description; from that come the struct's member, the parser, the
// line of a saved file and docs/configuration.md. Limits are those of field.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/field.h"
#include "config/options.h"
#include "mask/rule.h"
#include "reward/advantage.h"

namespace augur {

#define AUGUR_KEY_MEMBER(type, name, initial, limits, description) type name = initial;

// clang-format off
#define AUGUR_RUN_KEYS(KEY)                                                                                  \
  KEY(std::string, dir, "", MayChange(),                                                                     \
      "The run's directory. Empty: runs/ and the name of the configuration file.")                           \
  KEY(int64_t, seed, 0, AtLeast(0), "Every random choice follows from it.")                                  \
  KEY(std::string, device, "auto", kAny, "auto, cpu, cuda or cuda:N (one process alone); auto takes a GPU where there is one.")  \
  KEY(int64_t, threads, 0, AtLeast(0).AtMost(1024), "CPU threads; 0 takes all cores.")                       \
  KEY(bool, deterministic, false, kAny,                                                                      \
      "Take only kernels that give the same bits at every run; on a GPU some are slower.")                   \
  KEY(std::string, resume, "auto", MayChange(),                                                              \
      "auto goes on from where the run stands, never begins anew, a step or a checkpoint's path goes on "    \
      "from there. What that leaves behind is moved aside; the same command again goes on.")                 \
  KEY(bool, resume_changed, false, MayChange(),                                                              \
      "Go on although the configuration, or a file that the run reads, differs from the checkpoint's.")
struct RunSection {
  AUGUR_RUN_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

#define AUGUR_MODEL_KEYS(KEY)                                                                                \
  KEY(std::string, path, "", kAny,                                                                           \
      "A Hugging Face directory (config.json, safetensors, tokenizer.json), or a model of the hub: "         \
      "Org/Name or Org/Name@REVISION.")                                                                      \
  KEY(Precision, precision, Precision::kBf16, kAny,                                                          \
      "What GEMMs are computed in; master weights are float32. fp8_rollout rounds only the rollout copy "    \
      "to FP8, fp8 the trainer's GEMMs too.")
// Not for sft.
#define AUGUR_MODEL_TRAIN_KEYS(KEY)                                                                          \
  KEY(std::string, reference, "", kAny,                                                                      \
      "The model of algorithm.kl_coef's penalty. Empty: this model as it was at the start, without the "      \
      "adapters of lora.")
struct ModelSection {
  AUGUR_MODEL_KEYS(AUGUR_KEY_MEMBER)
  AUGUR_MODEL_TRAIN_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
  void TrainFields(FieldList& list);
};

// Low-rank adapters; part of `train` and of `sft`.
#define AUGUR_LORA_KEYS(KEY)                                                                                 \
  KEY(int64_t, rank, 0, AtLeast(0).AtMost(4096), "Rank of the adapters; 0 is off: every weight is trained.") \
  KEY(double, alpha, 32, Above(0).AtMost(65536), "What an adapter adds is multiplied by alpha / rank.")                    \
  KEY(std::vector<std::string>, targets, {"all-linear"}, kAny,                                               \
      "Which linear layers have one, by the ends of their names (q_proj, mlp.down_proj); all-linear means "  \
      "all, experts included.")                                                                              \
  KEY(double, dropout, 0, AtLeast(0),                                                                        \
      "Only 0: training must compute what rollouts computed, and those drop nothing.")                       \
  KEY(std::vector<std::string>, modules_to_save, {"norm"}, kAny,                                             \
      "Modules that are trained whole together with the adapters: norm is the final norm.")                         \
  KEY(std::string, adapter, "", kAny,                                                                        \
      "A directory in PEFT's format to go on from, or one of the hub: Org/Name; rank, alpha, targets and "   \
      "modules are then its own.")
struct LoraSection {
  AUGUR_LORA_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

// How prompts become text and tokens; shared by training and evaluation.
#define AUGUR_DATA_KEYS(KEY)                                                                                 \
  KEY(std::vector<std::string>, train, {}, kAny,                                                             \
      "JSONL or Parquet files to train on, data sets of the hub (hf://Org/Name[@REVISION][/PATH]), or "      \
      "tasks (task:sort:count=4096).")                                                                       \
  KEY(std::string, prompt_key, "", kAny,                                                                     \
      "Column of the prompt. Empty: prompt, problem, question or messages.")                                 \
  KEY(std::string, answer_key, "", kAny,                                                                     \
      "Column of the answer. Empty: reward_model.ground_truth, label, answer or solution; for augur sft "    \
      "solution, answer, label or completion.")                                                              \
  KEY(bool, cut_answer, false, kAny,                                                                         \
      "Cut the assistant's message off a conversation that ends with one, which is an error otherwise; it "  \
      "is the answer where the row has no other.")                                                           \
  KEY(std::string, data_source_key, "", kAny,                                                                \
      "Column that groups evaluation figures. Empty: data_source, else the file's name.")                    \
  KEY(std::string, prompt_template, "", kAny,                                                                \
      "Text around a prompt that is plain text, with {prompt} in its place.")                                \
  KEY(ChatUse, chat, ChatUse::kConversations, kAny,                                                          \
      "Which prompts go through the chat format: conversations, or always (plain text as a user's "          \
      "message).")                                                                                           \
  KEY(std::string, chat_format, "auto", kAny,                                                                \
      "auto takes the model's; otherwise " + OneOf(ChatFormat::Names()) + ".")                               \
  KEY(Thinking, thinking, Thinking::kDefault, kAny, "The template's enable_thinking.")                       \
  KEY(std::string, date, "", kAny,                                                                           \
      "\"Today Date\" of the Llama 3.1 and 3.2 formats, e.g. 26 Jul 2024; a run that must repeat sets it.")  \
  KEY(int64_t, max_prompt_tokens, 1024, AtLeast(1), "Longer prompts are dealt with as overlong says.")       \
  KEY(Overlong, overlong, Overlong::kError, kAny,                                                            \
      "What becomes of longer prompts: an error, left out, or only their last tokens kept.")                 \
  KEY(bool, shuffle, true, kAny, "Visit the prompts of each epoch in a random order.")
struct DataSection {
  AUGUR_DATA_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

#define AUGUR_REWARD_KEYS(KEY)                                                                               \
  KEY(std::string, verifier, "auto", kAny,                                                                   \
      "A verifier of `augur verify`; auto chooses one by each prompt's ground truth (countdown), else by "   \
      "its data source, else exact.")                                                                        \
  KEY(std::string, python, "", kAny,                                                                         \
      "A Python function that scores instead of the verifier, FILE.py:FUNCTION, with TRL's parameters "      \
      "(prompts, completions, **columns) or verl's (data_source, solution_str, ground_truth, extra_info). "  \
      "Empty: none.")                                                                                        \
  KEY(int64_t, workers, 0, AtLeast(0).AtMost(1024).MayChange(),                                              \
      "Processes that run it during generation; 0: one per core, 8 at most; processes of one machine share its cores.")                         \
  KEY(double, timeout_s, 30, Above(0), "Seconds it may take for one response.")                              \
  KEY(std::string, interpreter, "", kAny,                                                                    \
      "The Python that runs it. Empty: the one that runs Augur, or that Augur was set up with.")             \
  KEY(double, error_score, 0, AtLeast(-1e18).AtMost(1e18),                                                   \
      "The score of a response whose verifier or function failed; such are counted.")                        \
  KEY(double, max_errors, 0.5, AtLeast(0).AtMost(1).MayChange(),                                             \
      "The share of a step's responses whose verifier or function may fail; beyond it, and where all "       \
      "fail, the run stops.")                                                                                \
  KEY(int64_t, overlong_buffer, 0, AtLeast(0),                                                               \
      "DAPO's overlong shaping: within this many tokens of rollout.max_tokens the score falls; 0 is off.")   \
  KEY(double, overlong_penalty, 1, AtLeast(0), "How far it has fallen at rollout.max_tokens.")
struct RewardSection {
  AUGUR_REWARD_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

#define AUGUR_ROLLOUT_KEYS(KEY)                                                                              \
  KEY(int64_t, prompts, 16, AtLeast(1), "Prompts in each step.")                                             \
  KEY(int64_t, group, 8, AtLeast(1), "Responses to each prompt.")                                            \
  KEY(int64_t, max_tokens, 1024, AtLeast(1), "Most tokens in a response.")                                   \
  KEY(double, temperature, 1, Above(0), "Sampling temperature; the trainer's logits are divided by it too.") \
  KEY(int64_t, support, 20, AtLeast(0).AtMost(1024),                                                         \
      "K: how many of the most likely tokens are recorded with the sampled one, for the mask.")            \
  KEY(int64_t, staleness, 0, AtLeast(0).AtMost(1024),                                                        \
      "How many weight versions old a rollout may be; from 1 on, generation and training overlap.")          \
  KEY(std::vector<std::string>, stop, {}, kAny, "Texts that end a response.")                                \
  KEY(KvPrecision, kv_precision, KvPrecision::kBf16, kAny,                                                   \
      "What keys and values are kept as: bf16, or fp8 (a scale per token and head), in which twice as "      \
      "many fit on a GPU; what that adds to the mismatch is what the mask is for.")                          \
  KEY(bool, replay_routing, false, kAny,                                                                     \
      "Of models with experts: those that computed a token at generation compute it in training too, with "  \
      "the weights that the router then gives them.")                                                        \
  KEY(double, memory_share, 0.5, Above(0).AtMost(1),                                                         \
      "Share of the memory that is free when generation begins which keys and values may take; with "        \
      "staleness on a GPU, when the run begins.")                                                            \
  KEY(int64_t, max_batch, 0, AtLeast(0), "Most sequences decoded at once; 0 takes what fits, 256 at most.")
struct RolloutSection {
  AUGUR_ROLLOUT_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

struct MaskSection {
  MaskRule rule;
  void Fields(FieldList& list);
};

#define AUGUR_ALGORITHM_KEYS(KEY)                                                                            \
  KEY(Aggregation, aggregation, Aggregation::kTokenMean, kAny, "How token losses become one number.")        \
  KEY(int64_t, horizon, 0, AtLeast(0),                                                                       \
      "The constant of seq-mean-token-sum-norm; 0 takes rollout.max_tokens.")                                \
  KEY(LossKind, loss, LossKind::kMasked, kAny,                                                               \
      "masked applies the section mask; gspo, cispo and tis are there to compare with and use the fields "   \
      "below.")                                                                                              \
  KEY(double, loss_clip_low, 0.2, AtLeast(0),                                                                \
      "gspo: the ratio is clipped below 1 - this; where it is not set, gspo takes its authors' 3e-4.")       \
  KEY(double, loss_clip_high, 0.28, AtLeast(0),                                                              \
      "gspo and cispo: the ratio is clipped above 1 + this; where it is not set, gspo takes its authors' "   \
      "4e-4.")                                                                                               \
  KEY(double, tis_cap, 2, Above(0), "tis: the importance weight is cut to this.")                            \
  KEY(Anchor, anchor, Anchor::kRollout, kAny,                                                                \
      "Ratios and divergences are measured from the log-probs of the rollout, or from those the trainer "    \
      "computes before the first update.")                                                                   \
  KEY(double, kl_coef, 0, AtLeast(0), "Weight of the KL penalty to model.reference in the loss; 0 is off.")  \
  KEY(KlEstimator, kl_estimator, KlEstimator::kK3, kAny,                                                     \
      "Of that penalty, with d = log ref - log pi: k1 -d, k2 d^2/2, k3 exp(d) - d - 1.")                     \
  KEY(double, entropy_bonus, 0, kAny, "Weight of the policy's entropy in the loss; 0 is off.")               \
  KEY(double, load_balance_coef, 0, AtLeast(0),                                                              \
      "Of models with experts: weight of the load-balancing loss, as transformers computes it; 0 is off.")   \
  KEY(bool, skip_equal_groups, false, kAny, "Leave out groups whose scores are all equal.")                  \
  KEY(bool, dynamic_sampling, false, kAny, "Sample further prompts in place of such groups (DAPO).")         \
  KEY(int64_t, max_refills, 10, AtLeast(1), "How often in a step dynamic_sampling may do so.")               \
  KEY(bool, drop_truncated, false, kAny, "Leave responses cut off at rollout.max_tokens out of the loss.")
struct AlgorithmSection {
  std::string advantage = "grpo";  // a name of reward/advantage.h
  AUGUR_ALGORITHM_KEYS(AUGUR_KEY_MEMBER)
  // Whether the section `mask` decides. Other losses bound the ratio themselves, but for tis measured from the
  // trainer's own log-probs.
  bool UsesMask() const {
    return loss == LossKind::kMasked || (loss == LossKind::kTis && anchor == Anchor::kRecomputed);
  }
  void Fields(FieldList& list);
};

// AdamW and its schedule; part of `train` and of `sft`.
#define AUGUR_OPTIMIZER_KEYS(KEY)                                                                            \
  KEY(double, lr, 1e-6, AtLeast(0), "AdamW's learning rate after warm-up.")                                  \
  KEY(int64_t, warmup_steps, 0, AtLeast(0), "Steps over which it rises from 0.")                             \
  KEY(Schedule, schedule, Schedule::kConstant, kAny, "What it does afterwards.")                             \
  KEY(double, min_lr_ratio, 0, AtLeast(0).AtMost(1), "cosine: the share of lr left at the end.")             \
  KEY(double, beta1, 0.9, AtLeast(0).AtMost(0.999999), "AdamW's decay of the mean gradient.")                \
  KEY(double, beta2, 0.999, AtLeast(0).AtMost(0.999999), "AdamW's decay of the mean square.")                \
  KEY(double, eps, 1e-8, Above(0), "AdamW's epsilon.")                                                       \
  KEY(double, weight_decay, 0.01, AtLeast(0), "AdamW's decoupled weight decay.")                             \
  KEY(double, grad_clip, 1, AtLeast(0), "Largest global norm of a gradient; 0 does not clip.")               \
  KEY(StateDtype, optimizer_dtype, StateDtype::kFp32, kAny, "What AdamW's two states are kept in.")          \
  KEY(GradientDtype, gradient_dtype, GradientDtype::kFp32, kAny,                                             \
      "What gradients are added up in over micro-batches and ranks; bf16 is rounded stochastically, so that "     \
      "sums keep their mean, and without effect where parallel.shard divides gradients; with fp64 their order does not matter.")                                        \
  KEY(ActivationCheckpoint, checkpoint_activations, ActivationCheckpoint::kNone, kAny,                       \
      "Which activations the backward computes again.")                                                      \
  KEY(int64_t, micro_tokens, 16384, AtLeast(1),                                                              \
      "Most tokens in one forward; results do not depend on it beyond rounding. A longer sequence goes "     \
      "alone.")                                                                                              \
  KEY(int64_t, max_bad_updates, 3, AtLeast(1).MayChange(),                                                   \
      "Updates skipped in a row for a loss or gradient that is not finite before the run stops.")
struct OptimizerFields {
  AUGUR_OPTIMIZER_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

#define AUGUR_TRAIN_KEYS(KEY)                                                                                \
  KEY(int64_t, steps, 100, AtLeast(0).MayChange(), "Steps of rollout and training.")                         \
  KEY(int64_t, minibatch, 0, AtLeast(0),                                                                     \
      "Prompts (with all their responses) in one update; 0 takes all of rollout.prompts.")                   \
  KEY(int64_t, epochs, 1, AtLeast(1), "Passes over each step's responses.")
struct TrainSection {
  AUGUR_TRAIN_KEYS(AUGUR_KEY_MEMBER)
  OptimizerFields optimizer;
  void Fields(FieldList& list);
};

#define AUGUR_SFT_KEYS(KEY)                                                                                  \
  KEY(bool, from_scratch, false, kAny,                                                                       \
      "Begin with random weights that follow from run.seed; model.path then needs only config.json and a "   \
      "tokenizer.")                                                                                          \
  KEY(int64_t, steps, 100, AtLeast(0).MayChange(), "Updates.")                                               \
  KEY(int64_t, batch, 32, AtLeast(1).AtMost(1 << 20), "Sequences in each update.")
struct SftSection {
  AUGUR_SFT_KEYS(AUGUR_KEY_MEMBER)
  OptimizerFields optimizer{.lr = 1e-4};
  void Fields(FieldList& list);
};

#define AUGUR_PARALLEL_KEYS(KEY)                                                                             \
  KEY(Shard, shard, Shard::kAuto, MayChange(),                                                               \
      "What the ranks divide among themselves: none (each has all of it), states (master weights and "       \
      "AdamW's states, and gradients as they are made), full (the weights too, gathered while they are "     \
      "used), or auto, the first of these with which the model fits.")                                       \
  KEY(int64_t, replicas, 1, AtLeast(1).MayChange(),                                                          \
      "Divide it within so many groups of neighbouring ranks, each of which has all of it: the number of "   \
      "nodes keeps what is gathered within a node.")                                                         \
  KEY(double, timeout_s, 1800, Above(0).MayChange(),                                                         \
      "Seconds a rank waits for the others before the run ends.")
struct ParallelSection {
  AUGUR_PARALLEL_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

#define AUGUR_CHECKPOINT_KEYS(KEY)                                                                           \
  KEY(int64_t, every, 20, AtLeast(0).MayChange(),                                                            \
      "Steps between checkpoints; 0 writes one at the end only.")                                            \
  KEY(int64_t, keep, 2, AtLeast(0).MayChange(), "How many of the newest stay; 0 keeps all.")
struct CheckpointSection {
  AUGUR_CHECKPOINT_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

#define AUGUR_EVAL_KEYS(KEY)                                                                                 \
  KEY(std::vector<std::string>, files, {}, kAny, "JSONL or Parquet files; none: no evaluation.")             \
  KEY(int64_t, every, 20, AtLeast(0).MayChange(), "Steps between evaluations; 0: only at the end.")          \
  KEY(bool, at_start, true, MayChange(), "Evaluate before the first step too.")                              \
  KEY(int64_t, samples, 16, AtLeast(1).AtMost(1000000), "Responses to each prompt.")                         \
  KEY(int64_t, prompts, 0, AtLeast(0), "How many prompts of each file, from its beginning; 0: all.")         \
  KEY(double, temperature, 1, AtLeast(0), "0 is greedy.")                                                    \
  KEY(double, top_p, 1, Above(0).AtMost(1),                                                                  \
      "Sample from the most likely tokens that hold this mass; 1 is off.")                                   \
  KEY(int64_t, top_k, 0, AtLeast(0), "Sample from this many most likely tokens; 0 is off.")                  \
  KEY(int64_t, max_tokens, 0, AtLeast(0), "Most tokens in a response; 0 takes rollout.max_tokens.")
struct EvalSection {
  AUGUR_EVAL_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

#define AUGUR_AUDIT_KEYS(KEY)                                                                                \
  KEY(int64_t, every, 0, AtLeast(0).MayChange(), "Steps between audits; 0 is off.")
struct AuditSection {
  AUGUR_AUDIT_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
};

#define AUGUR_LOG_KEYS(KEY)                                                                                  \
  KEY(bool, console, true, MayChange(), "Progress on the terminal, or plain lines elsewhere.")               \
  KEY(bool, tensorboard, true, MayChange(), "Write TensorBoard events to the run's directory.")
// Not for sft.
#define AUGUR_LOG_TRAIN_KEYS(KEY)                                                                            \
  KEY(std::string, wandb, "", MayChange(),                                                                   \
      "A Weights & Biases project that the metrics and the report are sent to; needs the package wandb. "    \
      "Empty: none.")                                                                                        \
  KEY(int64_t, tokens, 8, AtLeast(0).MayChange(),                                                            \
      "Responses of each step kept token by token for the report's viewer.")
struct LogSection {
  AUGUR_LOG_KEYS(AUGUR_KEY_MEMBER)
  AUGUR_LOG_TRAIN_KEYS(AUGUR_KEY_MEMBER)
  void Fields(FieldList& list);
  void TrainFields(FieldList& list);
};

// clang-format on
#undef AUGUR_KEY_MEMBER

// `augur train`.
struct RlConfig {
  RunSection run;
  ModelSection model;
  LoraSection lora;
  DataSection data;
  RewardSection reward;
  RolloutSection rollout;
  MaskSection mask;
  AlgorithmSection algorithm;
  TrainSection train;
  ParallelSection parallel;
  CheckpointSection checkpoint;
  EvalSection eval;
  AuditSection audit;
  LogSection log;
};

// `augur sft`.
struct SftConfig {
  RunSection run;
  ModelSection model;
  LoraSection lora;
  DataSection data;
  SftSection sft;
  ParallelSection parallel;
  CheckpointSection checkpoint;
  LogSection log;
};

// Every field of a configuration; the pointers within are to `config`'s members.
FieldList FieldsOf(RlConfig& config);
FieldList FieldsOf(SftConfig& config);

}  // namespace augur
