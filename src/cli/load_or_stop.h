// What a command loads before it begins.
#pragma once

#include <functional>

namespace augur {

// Runs `load` on all ranks, as Ranks::Together. StopSignals must live: where a signal comes meanwhile, a line
// says so and the command ends with kInterrupted; of several ranks, each goes on and finds the signal then.
void LoadOrStop(const std::function<void()>& load);

}  // namespace augur
