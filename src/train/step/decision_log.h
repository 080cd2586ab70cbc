// What the report shows of single tokens: a sample of decisions for the scatter plots, and a few responses in
// full, taken from the last minibatch of a step, where the policy is furthest from the one that sampled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/prompt_length.h"
#include "metrics/point_record.h"
#include "metrics/token_record.h"
#include "rollout/prompts.h"
#include "train/step/experience.h"
#include "train/step/policy_step.h"

namespace augur {

class DecisionLog {
 public:
  // All arguments must outlive this object.
  DecisionLog(const RlConfig& config, const ModelText& text, const TokenizedPrompts& prompts,
              const StepLoss& loss);

  // Whether step `step` is recorded: about twenty of a run's are.
  bool Due(int64_t step) const;

  // For LearnHooks::last_minibatch.
  void Visit(const MicroBatch& batch, const PolicyLoss& out);
  // For LearnHooks::before_update: gathers what all ranks saw on the first, and describes the responses with
  // most masked tokens by the log-probs that decided.
  void Describe(int64_t step, const Experience& experience);
  // On the first rank: appends what was gathered to RUN/points.jsonl and RUN/tokens.jsonl.
  void Write(const std::filesystem::path& run, int64_t step);

 private:
  const RlConfig& config_;
  const ModelText& text_;
  const TokenizedPrompts& prompts_;
  const StepLoss& loss_;
  struct Candidate {
    TrainSample sample;
    int64_t masked = 0;
    std::vector<float> policy;                  // [tokens, columns] log pi
    std::vector<float> tail_mass, tail_square;  // [tokens]
  };
  void KeepMostMasked();
  void GatherOnFirst(const Experience& experience);
  std::string ToBytes(const Experience& experience) const;
  void AddBytes(const std::string& bytes, const Experience& experience);

  std::map<size_t, std::vector<TokenPoint>> points_;  // by the response's place in the minibatch
  std::vector<Candidate> candidates_;
  std::vector<ResponseRecord> records_;
};

}  // namespace augur
