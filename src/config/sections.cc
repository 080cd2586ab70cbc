// The sections, and the keys of their lists in config.h.
#include "base/names.h"
#include "config/config.h"
#include "text/chat_format.h"

namespace augur {
namespace {

constexpr Limits kAny;
constexpr Limits AtLeast(double bound) { return kAny.AtLeast(bound); }
constexpr Limits Above(double bound) { return kAny.Above(bound); }
constexpr Limits MayChange() { return kAny.MayChange(); }

}  // namespace

#define AUGUR_ADD_KEY(type, name, initial, limits, description) list.Add(#name, name, limits, description);

void RunSection::Fields(FieldList& list) {
  list.Section("run", "Where and how the run is carried out.");
  AUGUR_RUN_KEYS(AUGUR_ADD_KEY)
}

void ModelSection::Fields(FieldList& list) {
  list.Section("model", "What is trained.");
  AUGUR_MODEL_KEYS(AUGUR_ADD_KEY)
}

void ModelSection::TrainFields(FieldList& list) { AUGUR_MODEL_TRAIN_KEYS(AUGUR_ADD_KEY) }

void LoraSection::Fields(FieldList& list) {
  list.Section("lora", "Low-rank adapters in place of training every weight (docs/training.md).");
  AUGUR_LORA_KEYS(AUGUR_ADD_KEY)
}

void DataSection::Fields(FieldList& list) {
  list.Section("data", "Prompts, and how they become tokens.");
  AUGUR_DATA_KEYS(AUGUR_ADD_KEY)
}

void RewardSection::Fields(FieldList& list) {
  list.Section("reward", "How responses are scored.");
  AUGUR_REWARD_KEYS(AUGUR_ADD_KEY)
}

void RolloutSection::Fields(FieldList& list) {
  list.Section("rollout", "How responses are sampled.");
  AUGUR_ROLLOUT_KEYS(AUGUR_ADD_KEY)
}

void MaskSection::Fields(FieldList& list) {
  list.Section("mask", "Which updates may pass (docs/masks.md). `mask: NAME` is short for the preset alone.");
  list.AddField("preset", MaskPreset{&rule}, kAny, "Sets all fields; the others given change it.");
  for (const RuleField& field : RuleFields()) {
    list.AddField(field.name, MaskField{&rule, &field}, kAny, field.description);
  }
}

void AlgorithmSection::Fields(FieldList& list) {
  list.Section("algorithm", "From scores to a loss.");
  list.AddName("advantage", advantage, AdvantageNames(), AdvantageDescriptions());
  AUGUR_ALGORITHM_KEYS(AUGUR_ADD_KEY)
}

void OptimizerFields::Fields(FieldList& list) { AUGUR_OPTIMIZER_KEYS(AUGUR_ADD_KEY) }

void TrainSection::Fields(FieldList& list) {
  list.Section("train", "The updates.");
  AUGUR_TRAIN_KEYS(AUGUR_ADD_KEY)
  optimizer.Fields(list);
}

void SftSection::Fields(FieldList& list) {
  list.Section("sft", "The updates: prompts in, answers out.");
  AUGUR_SFT_KEYS(AUGUR_ADD_KEY)
  optimizer.Fields(list);
}

void ParallelSection::Fields(FieldList& list) {
  list.Section("parallel", "Several processes, started by torchrun or srun (docs/scaling.md).");
  AUGUR_PARALLEL_KEYS(AUGUR_ADD_KEY)
}

void CheckpointSection::Fields(FieldList& list) {
  list.Section("checkpoint", "What survives a crash.");
  AUGUR_CHECKPOINT_KEYS(AUGUR_ADD_KEY)
}

void EvalSection::Fields(FieldList& list) {
  list.Section("eval", "Evaluation during the run; prompts are read as the section data says.");
  AUGUR_EVAL_KEYS(AUGUR_ADD_KEY)
}

void AuditSection::Fields(FieldList& list) {
  list.Section("audit", "Predicted against realised change of divergence, during the run.");
  AUGUR_AUDIT_KEYS(AUGUR_ADD_KEY)
}

void LogSection::Fields(FieldList& list) {
  list.Section("log", "What is shown and kept in addition to metrics.jsonl.");
  AUGUR_LOG_KEYS(AUGUR_ADD_KEY)
}

void LogSection::TrainFields(FieldList& list){AUGUR_LOG_TRAIN_KEYS(AUGUR_ADD_KEY)}
#undef AUGUR_ADD_KEY

FieldList FieldsOf(RlConfig& config) {
  FieldList list;
  config.run.Fields(list);
  config.model.Fields(list);
  config.model.TrainFields(list);
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
