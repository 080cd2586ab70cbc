#include "train/parallel/stop.h"

#include "base/stop_signals.h"
#include "ops/parallel/ranks.h"

namespace augur {
namespace {

const char* agreed = nullptr;

}  // namespace

bool StopAgreed() {
  const Ranks ranks = Ranks::World();
  if (ranks.alone()) return StopSignals::Received() != nullptr;
  agreed = StopSignals::NameOf(static_cast<int>(ranks.Max(StopSignals::Signal())));
  return agreed != nullptr;
}

void CheckStopTogether() {
  if (Ranks::World().alone()) return CheckStop();
  if (StopAgreed()) throw Stopped();
}

const char* StopSignalName() { return agreed != nullptr ? agreed : StopSignals::Received(); }

}  // namespace augur
