// The configuration of `augur train` and `augur sft`: one struct per section. Defaults stand here,
// descriptions and limits in the Fields() beside them (sections.cc); docs/configuration.md is made from both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/field.h"
#include "config/options.h"
#include "mask/rule.h"
#include "reward/advantage.h"

namespace augur {

struct RunSection {
  std::string dir;
  int64_t seed = 0;
  std::string device = "auto";
  int64_t threads = 0;
  bool deterministic = false;
  std::string resume = "auto";
  bool resume_changed = false;
  void Fields(FieldList& list);
};

struct ModelSection {
  std::string path;
  Precision precision = Precision::kBf16;
  std::string reference;
  void Fields(FieldList& list);
  void ReferenceField(FieldList& list);  // not for sft
};

// Low-rank adapters; part of `train` and of `sft`.
struct LoraSection {
  int64_t rank = 0;
  double alpha = 32;
  std::vector<std::string> targets = {"all-linear"};
  double dropout = 0;
  std::vector<std::string> modules_to_save = {"norm"};
  std::string adapter;
  void Fields(FieldList& list);
};

// How prompts become text and tokens; shared by training and evaluation.
struct DataSection {
  std::vector<std::string> train;
  std::string prompt_key, answer_key, data_source_key;
  std::string prompt_template;
  ChatUse chat = ChatUse::kConversations;
  std::string chat_format = "auto";
  Thinking thinking = Thinking::kDefault;
  std::string date;
  int64_t max_prompt_tokens = 1024;
  Overlong overlong = Overlong::kError;
  bool shuffle = true;
  void Fields(FieldList& list);
};

struct RewardSection {
  std::string verifier = "auto";
  std::string python;
  int64_t workers = 0;
  double timeout_s = 30;
  std::string interpreter;
  double error_score = 0;
  double max_errors = 0.5;
  int64_t overlong_buffer = 0;
  double overlong_penalty = 1;
  void Fields(FieldList& list);
};

struct RolloutSection {
  int64_t prompts = 16;
  int64_t group = 8;
  int64_t max_tokens = 1024;
  double temperature = 1;
  int64_t support = 20;
  int64_t staleness = 0;
  std::vector<std::string> stop;
  KvPrecision kv_precision = KvPrecision::kBf16;
  bool replay_routing = false;
  double memory_share = 0.5;
  int64_t max_batch = 0;
  void Fields(FieldList& list);
};

struct MaskSection {
  MaskRule rule;
  void Fields(FieldList& list);
};

struct AlgorithmSection {
  std::string advantage = "grpo";  // a name of reward/advantage.h
  Aggregation aggregation = Aggregation::kTokenMean;
  int64_t horizon = 0;
  LossKind loss = LossKind::kMasked;
  double loss_clip_low = 0.2;
  double loss_clip_high = 0.28;
  double tis_cap = 2;
  Anchor anchor = Anchor::kRollout;
  double kl_coef = 0;
  KlEstimator kl_estimator = KlEstimator::kK3;
  double entropy_bonus = 0;
  double load_balance_coef = 0;
  bool skip_equal_groups = false;
  bool dynamic_sampling = false;
  int64_t max_refills = 10;
  bool drop_truncated = false;
  void Fields(FieldList& list);
};

// AdamW and its schedule; part of `train` and of `sft`.
struct OptimizerFields {
  double lr = 1e-6;
  int64_t warmup_steps = 0;
  Schedule schedule = Schedule::kConstant;
  double min_lr_ratio = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double grad_clip = 1;
  StateDtype optimizer_dtype = StateDtype::kFp32;
  StateDtype gradient_dtype = StateDtype::kFp32;
  ActivationCheckpoint checkpoint_activations = ActivationCheckpoint::kNone;
  int64_t micro_tokens = 16384;
  int64_t max_bad_updates = 3;
  void Fields(FieldList& list);
};

struct TrainSection {
  int64_t steps = 100;
  int64_t minibatch = 0;
  int64_t epochs = 1;
  OptimizerFields optimizer;
  void Fields(FieldList& list);
};

struct SftSection {
  bool from_scratch = false;
  int64_t steps = 100;
  int64_t batch = 32;
  OptimizerFields optimizer{.lr = 1e-4};
  void Fields(FieldList& list);
};

struct ParallelSection {
  Shard shard = Shard::kAuto;
  int64_t replicas = 1;
  double timeout_s = 1800;
  void Fields(FieldList& list);
};

struct CheckpointSection {
  int64_t every = 20;
  int64_t keep = 2;
  void Fields(FieldList& list);
};

struct EvalSection {
  std::vector<std::string> files;
  int64_t every = 20;
  bool at_start = true;
  int64_t samples = 16;
  int64_t prompts = 0;
  double temperature = 1;
  double top_p = 1;
  int64_t top_k = 0;
  int64_t max_tokens = 0;
  void Fields(FieldList& list);
};

struct AuditSection {
  int64_t every = 0;
  void Fields(FieldList& list);
};

struct LogSection {
  bool console = true;
  bool tensorboard = true;
  std::string wandb;
  int64_t tokens = 8;
  void Fields(FieldList& list);
  void TrainFields(FieldList& list);  // not for sft
};

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
