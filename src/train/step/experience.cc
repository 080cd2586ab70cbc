#include "train/step/experience.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/stop_signals.h"
#include "base/tell.h"
#include "ops/parallel/ranks.h"
#include "reward/advantage.h"
#include "rollout/generate_on_ranks.h"
#include "train/parallel/stop.h"

namespace augur {
namespace {

SamplingOptions TrainingSampling(const RlConfig& config, const ModelText& text) {
  SamplingOptions options;
  options.temperature = config.rollout.temperature;
  options.max_tokens = config.rollout.max_tokens;
  options.samples = config.rollout.group;
  options.support = config.rollout.support;
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.vocab_size = text.vocab_size();
  CheckSupport(options.support, options.vocab_size, "rollout.support");
  options.end_tokens = text.end_tokens;
  options.stop_texts = config.rollout.stop;
  CheckTrainingSampling(options, "rollout");
  return options;
}

// With rollout.support 0 the sampled token is its own support, all that ratio masks need.
void RecordSampledAlone(Rollout* rollout) { rollout->support = {1, rollout->tokens, rollout->logprobs}; }

// Nothing can be learned from failures, and a model that only fails will go on doing so.
void RequireAnyResponse(std::span<const Rollout> rollouts) {
  const auto failed = [](const Rollout& rollout) { return rollout.finish == FinishReason::kFailed; };
  if (!std::ranges::all_of(rollouts, failed)) return;
  const Rollout& first = rollouts.front();
  const std::string what =
      fmt::format("not one of {} responses could be generated; the first: {}", rollouts.size(), first.error);
  if (!first.not_finite) throw Error("rollout", what, "");
  throw NotFiniteError("rollout", what,
                       "go on from an earlier checkpoint (run.resume) with a smaller train.lr");
}

bool IsEqualGroup(std::span<const Score> scores) {
  RewardGroup group;
  for (const Score& score : scores) group.Add(score.value);
  return group.equal();
}

}  // namespace

Scorer MakeScorer(const RewardSection& reward) {
  if (reward.python.empty()) return Scorer(reward.verifier, "reward.verifier", reward.error_score);
  const PythonReward function{reward.python, reward.interpreter, reward.workers, reward.timeout_s};
  return Scorer(function, reward.error_score);
}

ExperienceMaker::ExperienceMaker(const RlConfig& config, const ModelText& text,
                                 const TokenizedPrompts& prompts, Engine& engine, const Scorer& scorer)
    : config_(config),
      text_(text),
      prompts_(prompts),
      engine_(engine),
      scorer_(scorer),
      order_(prompts.prompts.size(), static_cast<uint64_t>(config.run.seed), config.data.shuffle) {
  engine.CheckOptions(TrainingSampling(config, text), !config.rollout.stop.empty());
}

Experience ExperienceMaker::Make(int64_t step, uint64_t* position, const Watch& watch) {
  uint64_t next = *position;
  Experience experience;
  experience.weight_version = engine_.weight_version();
  experience.position = next;
  const int64_t restarts = scorer_.restarts();
  const auto wanted = static_cast<size_t>(config_.rollout.prompts);
  while (true) {
    TakeScores(Generate(step, &next, watch, &experience), watch, &experience);
    if (!config_.algorithm.dynamic_sampling) break;
    DropEqualGroups(&experience);
    if (experience.prompts.size() >= wanted || experience.refills >= config_.algorithm.max_refills) break;
    ++experience.refills;
  }
  auto restarted = static_cast<double>(scorer_.restarts() - restarts);
  Ranks::World().Sum(&restarted, 1);
  experience.reward_restarts = static_cast<int64_t>(restarted);
  const ScoringErrors errors{experience.reward_errors, experience.groups * config_.rollout.group,
                             experience.error_at, experience.error};
  Ranks::World().Together(  // all ranks know of them, and one tells
      [&] { LimitErrors(errors, config_.reward.max_errors, "this step's", scorer_.uses_python()); });
  TellOfErrors(errors);
  *position = next;
  const size_t groups = std::min(wanted, experience.prompts.size());
  const size_t responses = groups * static_cast<size_t>(config_.rollout.group);
  experience.prompts.resize(groups);
  experience.rollouts.resize(responses);
  experience.scores.resize(responses);
  experience.rewards.resize(responses);
  return experience;
}

// Functions in Python tell of their first failure themselves.
void ExperienceMaker::TellOfErrors(const ScoringErrors& errors) {
  if (errors.errors == 0 || scorer_.uses_python() || !config_.log.console ||
      std::exchange(told_of_errors_, true))
    return;
  Tell(
      "augur: warning: {}: {} of this step's {} responses could not be scored and got reward.error_score; "
      "here: {}; from now on such responses are only counted (reward/errors)\n",
      errors.where, errors.errors, errors.responses, errors.reason);
}

// Responses are scored as they finish, while others are still generated.
ExperienceMaker::PendingScores ExperienceMaker::Generate(int64_t step, uint64_t* position, const Watch& watch,
                                                         Experience* experience) {
  const auto start = Clock::now();
  const auto group = static_cast<size_t>(config_.rollout.group);
  std::vector<GenerateRequest> requests;
  std::vector<const Prompt*> asked;
  for (int64_t i = 0; i < config_.rollout.prompts; ++i, ++*position) {
    const size_t place = order_.At(*position);
    experience->prompts.push_back(place);
    asked.push_back(&prompts_.prompts[place]);
    requests.push_back({*position, prompts_.tokens[place], prompts_.prompts[place].Where()});
  }
  PendingScores pending(requests.size() * group);
  GroupScorer scores(scorer_, group);
  const StepsOfRun steps{step - 1, config_.train.steps};
  GenerateHooks hooks;
  hooks.finished = [&](size_t place, const Rollout& rollout) {
    if (rollout.finish == FinishReason::kCancelled) return;
    pending[place] = scores.Start(
        place, {asked[place / group], text_.ResponseText(rollout.tokens), rollout.tokens, steps});
  };
  if (!config_.rollout.stop.empty()) {
    hooks.text = [this](int32_t token) { return text_.tokenizer.TokenBytes(token); };
  }
  if (watch) {
    hooks.progress = [&](const GenerateProgress& now) {
      watch({"generating", now.finished, now.total, "responses", now.new_tokens});
    };
    hooks.progress({.total = static_cast<int64_t>(pending.size())});
  }
  if (!Ranks::World().alone()) hooks.cancelled = [] { return StopSignals::Received() != nullptr; };
  std::vector<Rollout> rollouts = GenerateOnRanks(engine_, requests, TrainingSampling(config_, text_), hooks);
  CheckStopTogether();
  Ranks::World().Together([&] { RequireAnyResponse(rollouts); });
  for (Rollout& rollout : rollouts) {
    experience->failed += rollout.finish == FinishReason::kFailed;
    if (rollout.support.columns == 0) RecordSampledAlone(&rollout);
    experience->rollouts.push_back(std::move(rollout));
  }
  experience->generate_seconds += SecondsSince(start);
  experience->decode_batch = std::max(experience->decode_batch, engine_.stats().decode_batch);
  return pending;
}

void ExperienceMaker::TakeScores(PendingScores pending, const Watch& watch, Experience* experience) {
  const auto start = Clock::now();
  const RewardSection& reward = config_.reward;
  const auto group = static_cast<size_t>(config_.rollout.group);
  const size_t from = experience->rollouts.size() - pending.size();
  const auto count = static_cast<int64_t>(pending.size());
  std::vector<Score> scores = ScoresOfRanks(&pending, [&](size_t i) {
    CheckStop();
    if (watch) watch({"scoring", static_cast<int64_t>(i), count, "responses"});
  });
  CheckStopTogether();
  for (size_t i = 0; i < scores.size(); ++i) {
    Score& score = scores[i];
    const auto tokens = static_cast<int64_t>(experience->rollouts[from + i].tokens.size());
    if (score.failed && experience->reward_errors++ == 0) {
      experience->error_at = prompts_.prompts[experience->prompts[(from + i) / group]].Where();
      experience->error = score.error;
    }
    experience->rewards.push_back(score.value + OverlongPenalty(tokens, config_.rollout.max_tokens,
                                                                reward.overlong_buffer,
                                                                reward.overlong_penalty));
    experience->scores.push_back(std::move(score));
  }
  for (size_t i = from; i < experience->scores.size(); i += group) {
    experience->equal_groups += IsEqualGroup(std::span(experience->scores).subspan(i, group));
    ++experience->groups;
  }
  experience->reward_seconds += SecondsSince(start);
}

void ExperienceMaker::DropEqualGroups(Experience* experience) const {
  const auto group = static_cast<size_t>(config_.rollout.group);
  Experience& e = *experience;
  size_t kept = 0;
  for (size_t g = 0; g < e.prompts.size(); ++g) {
    if (IsEqualGroup(std::span(e.scores).subspan(g * group, group))) continue;
    if (kept != g) {
      e.prompts[kept] = e.prompts[g];
      for (size_t i = 0; i < group; ++i) {
        e.rollouts[kept * group + i] = std::move(e.rollouts[g * group + i]);
        e.scores[kept * group + i] = std::move(e.scores[g * group + i]);
        e.rewards[kept * group + i] = e.rewards[g * group + i];
      }
    }
    ++kept;
  }
  e.prompts.resize(kept);
  e.rollouts.resize(kept * group);
  e.scores.resize(kept * group);
  e.rewards.resize(kept * group);
}

}  // namespace augur
