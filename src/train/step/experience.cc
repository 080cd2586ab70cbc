#include "train/step/experience.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/stop_signals.h"
#include "reward/advantage.h"

namespace augur {
namespace {

SamplingOptions TrainingSampling(const RlConfig& config, const ModelText& text) {
  SamplingOptions options;
  options.temperature = config.rollout.temperature;
  options.max_tokens = config.rollout.max_tokens;
  options.samples = config.rollout.group;
  options.support = config.rollout.support;
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.vocabulary = text.vocabulary();
  options.end_tokens = text.end_tokens;
  options.stop_texts = config.rollout.stop;
  CheckTrainingSampling(options, "rollout");
  return options;
}

// With rollout.support 0 the sampled token is its own support, all that ratio masks need.
void RecordSampledAlone(Rollout* rollout) { rollout->support = {1, rollout->tokens, rollout->logprobs}; }

// Nothing can be learned from failures, and a model that only fails will go on doing so.
void RequireAnyResponse(const Experience& experience) {
  if (experience.failed < static_cast<int64_t>(experience.rollouts.size())) return;
  throw Error("rollout",
              fmt::format("not one of {} responses could be generated; the first: {}",
                          experience.rollouts.size(), experience.rollouts.front().error),
              "where the weights have left the finite numbers, go on from an earlier checkpoint "
              "(run.resume) with a smaller train.lr");
}

}  // namespace

ExperienceMaker::ExperienceMaker(const RlConfig& config, const ModelText& text,
                                 const TokenizedPrompts& prompts, Engine& engine)
    : config_(config),
      text_(text),
      prompts_(prompts),
      engine_(engine),
      order_(prompts.prompts.size(), static_cast<uint64_t>(config.run.seed), config.data.shuffle) {
  engine.CheckOptions(TrainingSampling(config, text), !config.rollout.stop.empty());
}

Experience ExperienceMaker::Make(uint64_t* position, const Watch& watch) {
  uint64_t next = *position;
  Experience experience;
  experience.weight_version = engine_.weight_version();
  const auto wanted = static_cast<size_t>(config_.rollout.prompts);
  while (true) {
    const size_t before = experience.rollouts.size();
    Generate(&next, watch, &experience);
    ScoreAll(before, watch, &experience);
    if (!config_.algorithm.dynamic_sampling) break;
    DropEqualGroups(&experience);
    if (experience.prompts.size() >= wanted || experience.refills >= config_.algorithm.max_refills) break;
    ++experience.refills;
  }
  *position = next;
  const size_t groups = std::min(wanted, experience.prompts.size());
  const size_t responses = groups * static_cast<size_t>(config_.rollout.group);
  experience.prompts.resize(groups);
  experience.rollouts.resize(responses);
  experience.scores.resize(responses);
  experience.rewards.resize(responses);
  return experience;
}

void ExperienceMaker::Generate(uint64_t* position, const Watch& watch, Experience* experience) {
  const auto start = Clock::now();
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < config_.rollout.prompts; ++i, ++*position) {
    const size_t place = order_.At(*position);
    experience->prompts.push_back(place);
    requests.push_back({*position, prompts_.tokens[place], prompts_.prompts[place].Where()});
  }
  GenerateHooks hooks;
  if (!config_.rollout.stop.empty()) {
    hooks.text = [this](int32_t token) { return text_.tokenizer.TokenBytes(token); };
  }
  if (watch) {
    hooks.progress = [&](const GenerateProgress& now) {
      watch({"generating", now.finished, now.total, "responses", now.new_tokens});
    };
  }
  for (Rollout& rollout : engine_.Generate(requests, TrainingSampling(config_, text_), hooks)) {
    experience->generated_tokens += static_cast<int64_t>(rollout.tokens.size());
    experience->failed += rollout.finish == FinishReason::kFailed;
    if (rollout.support.columns == 0) RecordSampledAlone(&rollout);
    experience->rollouts.push_back(std::move(rollout));
  }
  experience->generate_seconds += SecondsSince(start);
  RequireAnyResponse(*experience);
}

void ExperienceMaker::ScoreAll(size_t from, const Watch& watch, Experience* experience) {
  const auto start = Clock::now();
  const RewardSection& reward = config_.reward;
  const auto group = static_cast<size_t>(config_.rollout.group);
  std::vector<ScoredResponse> scored;
  for (size_t i = from; i < experience->rollouts.size(); ++i) {
    CheckStop();
    if (watch) {
      watch({"scoring", static_cast<int64_t>(i - from),
             static_cast<int64_t>(experience->rollouts.size() - from), "responses"});
    }
    const Rollout& rollout = experience->rollouts[i];
    const Prompt& prompt = prompts_.prompts[experience->prompts[i / group]];
    const Score score = ScoreResponse(reward, prompt, text_.ResponseText(rollout.tokens));
    const auto tokens = static_cast<int64_t>(rollout.tokens.size());
    experience->reward_errors += score.failed;
    experience->scores.push_back(score);
    experience->rewards.push_back(score.value + OverlongPenalty(tokens, config_.rollout.max_tokens,
                                                                reward.overlong_buffer,
                                                                reward.overlong_penalty));
    scored.push_back({experience->rewards.back(), static_cast<int64_t>(i / group), tokens});
  }
  const auto equal = std::ranges::count(InEqualGroup(scored), true);
  experience->equal_groups += equal / config_.rollout.group;
  experience->groups += static_cast<int64_t>(scored.size() / group);
  experience->reward_seconds += SecondsSince(start);
}

void ExperienceMaker::DropEqualGroups(Experience* experience) const {
  const auto group = static_cast<size_t>(config_.rollout.group);
  Experience& e = *experience;
  size_t kept = 0;
  for (size_t g = 0; g < e.prompts.size(); ++g) {
    const auto first = e.rewards.begin() + static_cast<std::ptrdiff_t>(g * group);
    const bool equal = group > 1 && std::all_of(first, first + static_cast<std::ptrdiff_t>(group),
                                                [&](double reward) { return reward == *first; });
    if (equal) continue;
    if (kept != g) {
      e.prompts[kept] = e.prompts[g];
      for (size_t i = 0; i < group; ++i) {
        e.rollouts[kept * group + i] = std::move(e.rollouts[g * group + i]);
        e.scores[kept * group + i] = e.scores[g * group + i];
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
