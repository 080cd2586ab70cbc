// What one training step learns from: groups of responses with their rewards.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <vector>

#include "config/config.h"
#include "data/prompt_length.h"
#include "data/prompt_order.h"
#include "metrics/progress.h"
#include "reward/scorer.h"
#include "rollout/engine.h"
#include "rollout/prompts.h"

namespace augur {

struct Experience {
  std::vector<Rollout> rollouts;  // group after group; rollout.group of each
  std::vector<size_t> prompts;    // [groups] places in the tokenized prompts
  std::vector<Score> scores;      // [rollouts] as the verifier gave them: equal groups are told by these
  std::vector<double> rewards;    // [rollouts] with overlong shaping
  int64_t weight_version = 0;
  uint64_t position = 0;  // of its first prompt in the order of prompts
  // Of everything generated on the way, also what dynamic sampling threw away.
  int64_t groups = 0, equal_groups = 0, refills = 0;
  int64_t reward_errors = 0, reward_restarts = 0, failed = 0;
  std::string error_at, error;  // the row of the first response that could not be scored, and why
  int64_t decode_batch = 0;     // most sequences decoded at once
  // Not part of a run's reproducible state.
  double generate_seconds = 0, reward_seconds = 0;
};

// As the section says.
Scorer MakeScorer(const RewardSection& reward);

class ExperienceMaker {
 public:
  // All arguments must outlive this object. Throws Error for settings that the model cannot sample with.
  ExperienceMaker(const RlConfig& config, const ModelText& text, const TokenizedPrompts& prompts,
                  Engine& engine, const Scorer& scorer);

  // The next rollout.prompts groups from `*position` of the prompt order on, which it moves forward, for step
  // `step` of the run to learn from. Draws depend on the seed and that position alone. With dynamic sampling,
  // groups whose scores are all equal are replaced by further prompts, up to algorithm.max_refills times;
  // fewer groups may come back then. `watch` is told how far generation and scoring are; what it throws,
  // Stopped included, leaves the position. Throws Error naming the row and the reason where all responses, or
  // more than the share reward.max_errors of them, could not be scored, and where none could be generated.
  Experience Make(int64_t step, uint64_t* position, const std::function<void(const Stage&)>& watch = {});

 private:
  using Watch = std::function<void(const Stage&)>;
  using PendingScores = std::vector<std::future<Score>>;  // in the order of the rollouts
  PendingScores Generate(int64_t step, uint64_t* position, const Watch& watch, Experience* experience);
  void TakeScores(PendingScores pending, const Watch& watch, Experience* experience);
  void DropEqualGroups(Experience* experience) const;
  void TellOfErrors(const ScoringErrors& errors);

  const RlConfig& config_;
  const ModelText& text_;
  const TokenizedPrompts& prompts_;
  Engine& engine_;
  const Scorer& scorer_;
  PromptOrder order_;
  bool told_of_errors_ = false;
};

}  // namespace augur
