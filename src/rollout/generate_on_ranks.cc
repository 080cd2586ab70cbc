#include "rollout/generate_on_ranks.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/stop_signals.h"
#include "base/tell.h"
#include "ops/parallel/ranks.h"
#include "reward/score_bytes.h"
#include "trajectory/trajectory_bytes.h"

namespace augur {
namespace {

// Hands requests out one by one: a rank that is done early takes more, and none holds more than its even
// share at once, so that the first to come does not take all. What a rank took is in `taken`. On a GPU the
// batch a sequence is in changes its rounding; where runs must repeat, requests are dealt out in turn.
class Handout {
 public:
  Handout(const Ranks& ranks, size_t requests)
      : ranks_(ranks),
        requests_(static_cast<int64_t>(requests)),
        share_((requests_ + ranks.size() - 1) / ranks.size()),
        fixed_(at::globalContext().deterministicAlgorithms()),
        next_(ranks.rank()) {
    static int64_t calls = 0;  // the same on every rank
    counter_ = fmt::format("augur/requests/{}", calls++);
  }

  std::optional<size_t> Next(int64_t held) {
    if (done_ || held >= share_) return std::nullopt;
    const int64_t number = fixed_ ? std::exchange(next_, next_ + ranks_.size()) : ranks_.TakeNumber(counter_);
    done_ = number >= requests_;
    if (done_) return std::nullopt;
    taken.push_back(static_cast<size_t>(number));
    return taken.back();
  }

  std::vector<size_t> taken;

 private:
  const Ranks& ranks_;
  const int64_t requests_, share_;
  const bool fixed_;
  int64_t next_;
  bool done_ = false;
  std::string counter_;
};

// Ranks advance alike: what one has done stands for all.
GenerateProgress OfAllRanks(GenerateProgress now, int ranks) {
  now.finished = std::min(now.finished * ranks, now.total);
  now.new_tokens *= ranks;
  now.prefill_tokens *= ranks;
  return now;
}

// As they come back where nobody took them.
std::vector<Rollout> NotGenerated(std::span<const GenerateRequest> requests, int64_t samples) {
  std::vector<Rollout> all;
  for (const GenerateRequest& request : requests) {
    for (int64_t s = 0; s < samples; ++s) {
      Rollout& rollout = all.emplace_back();
      rollout.prompt = request.key;
      rollout.sample = s;
      rollout.prompt_tokens = request.tokens;
      rollout.finish = FinishReason::kCancelled;
    }
  }
  return all;
}

}  // namespace

std::vector<Rollout> GenerateOnRanks(Engine& engine, std::span<const GenerateRequest> requests,
                                     const SamplingOptions& options, const GenerateHooks& hooks) {
  const Ranks ranks = Ranks::World();
  if (ranks.alone()) return engine.Generate(requests, options, hooks);
  Handout handout(ranks, requests.size());
  GenerateHooks here = hooks;
  here.next = [&](int64_t held) { return handout.Next(held); };
  if (hooks.finished) {
    // A prompt that cannot be generated for finishes on every rank, before any was taken.
    here.finished = [&](size_t place, const Rollout& rollout) {
      const size_t request = place / static_cast<size_t>(options.samples);
      const bool turn = request % static_cast<size_t>(ranks.size()) == static_cast<size_t>(ranks.rank());
      const bool took = std::ranges::find(handout.taken, request) != handout.taken.end();
      if (handout.taken.empty() ? turn : took) hooks.finished(place, rollout);
    };
  }
  if (hooks.progress) {
    here.progress = [&](const GenerateProgress& now) { hooks.progress(OfAllRanks(now, ranks.size())); };
  }
  const auto samples = static_cast<size_t>(options.samples);
  ByteWriter mine;
  ranks.Together([&] {
    const std::vector<Rollout> made = engine.Generate(requests, options, here);
    for (const size_t request : handout.taken) {
      for (size_t place = request * samples; place < (request + 1) * samples; ++place) {
        mine.Put(place);
        PutTrajectory(made[place], &mine);
      }
    }
  });
  std::vector<Rollout> all = NotGenerated(requests, options.samples);
  for (const std::string& bytes : ranks.GatherBytes(mine.bytes())) {
    for (ByteReader in(bytes); !in.done();) {
      const auto place = in.Next<size_t>();
      Rollout rollout = GetTrajectory(&in);
      rollout.prompt_tokens = std::move(all.at(place).prompt_tokens);
      all[place] = std::move(rollout);
    }
  }
  return all;
}

std::vector<Score> ScoresOfRanks(std::vector<std::future<Score>>* pending,
                                 const std::function<void(size_t)>& before) {
  const Ranks ranks = Ranks::World();
  std::vector<Score> all(pending->size());
  ByteWriter mine;
  static bool told = false;  // in this process, what a function's first fault was
  const auto wait = [&] {
    for (size_t i = 0; i < pending->size(); ++i) {
      if (!(*pending)[i].valid()) continue;
      if (before) before(i);
      all[i] = (*pending)[i].get();
      if (ranks.alone()) continue;
      told |= !all[i].told.empty();
      mine.Put(i);
      PutScore(all[i], &mine);
    }
  };
  ranks.Together([&] {
    try {
      wait();
    } catch (const Stopped&) {
      if (ranks.alone()) throw;
    }
  });
  if (ranks.alone()) return all;
  for (const std::string& bytes : ranks.GatherBytes(mine.bytes())) {
    for (ByteReader in(bytes); !in.done();) {
      const auto place = in.Next<size_t>();
      all.at(place) = GetScore(&in);
      // What another rank told was heard by nobody: the first alone prints.
      if (!all[place].told.empty() && !std::exchange(told, true)) Tell("{}", all[place].told);
    }
  }
  return all;
}

}  // namespace augur
