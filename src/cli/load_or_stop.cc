#include "cli/load_or_stop.h"

#include <optional>

#include "base/stop_signals.h"
#include "base/tell.h"
#include "cli/exit_code.h"
#include "ops/parallel/ranks.h"

namespace augur {

void LoadOrStop(const std::function<void()>& load) {
  const Ranks ranks = Ranks::World();
  try {
    ranks.Together([&] {
      std::optional<StopScope> scope;
      if (ranks.alone()) scope.emplace();
      load();
    });
  } catch (const Stopped&) {
    Tell("augur: stopped by {} before it began\n", StopSignals::Received());
    throw ExitCode{kInterrupted};
  }
}

}  // namespace augur
