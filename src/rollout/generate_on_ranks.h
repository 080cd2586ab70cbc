// Generation and scoring by all ranks together. Every rank calls these with the same arguments and gets the
// same result, which is that of one process: draws follow from the prompt's key, whoever makes them.
#pragma once

#include <functional>
#include <future>
#include <span>
#include <vector>

#include "reward/scorer.h"
#include "rollout/engine.h"

namespace augur {

// Engine::Generate, each prompt by one of the ranks. Of several ranks, the hook `token` and `finished` hear
// of this rank's prompts alone, and the progress told is this rank's, scaled to all.
std::vector<Rollout> GenerateOnRanks(Engine& engine, std::span<const GenerateRequest> requests,
                                     const SamplingOptions& options, const GenerateHooks& hooks = {});

// The scores that Scorer::Start promised, by place: each rank has begun those of its own responses, and all
// get all. `before` is called before each of this rank's is waited for. A signal that asks to stop throws
// Stopped in a process alone; of several ranks, each leaves the rest of its own unscored, and all must ask
// each other then.
std::vector<Score> ScoresOfRanks(std::vector<std::future<Score>>* pending,
                                 const std::function<void(size_t place)>& before = {});

}  // namespace augur
