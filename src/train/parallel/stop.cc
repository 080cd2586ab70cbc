#include "train/parallel/stop.h"

#include <cstring>

#include "base/stop_signals.h"
#include "ops/parallel/ranks.h"

namespace augur {
namespace {

const char* const kSignals[] = {nullptr, "SIGINT", "SIGTERM"};
const char* agreed = nullptr;

}  // namespace

bool StopAgreed() {
  const Ranks ranks = Ranks::World();
  if (ranks.alone()) return StopSignals::Received() != nullptr;
  const char* received = StopSignals::Received();
  const int mine = received == nullptr ? 0 : std::strcmp(received, "SIGINT") == 0 ? 1 : 2;
  agreed = kSignals[static_cast<int>(ranks.Max(mine))];
  return agreed != nullptr;
}

void CheckStopTogether() {
  if (Ranks::World().alone()) return CheckStop();
  if (StopAgreed()) throw Stopped();
}

const char* StopSignalName() { return agreed != nullptr ? agreed : StopSignals::Received(); }

}  // namespace augur
