#include "base/stop_signals.h"

#include <csignal>

namespace augur {
namespace {

volatile std::sig_atomic_t received = 0;

void OnSignal(int signal) {
  received = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

StopSignals::StopSignals() {
  received = 0;
  interrupt_ = std::signal(SIGINT, OnSignal);
  terminate_ = std::signal(SIGTERM, OnSignal);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, interrupt_);
  std::signal(SIGTERM, terminate_);
}

const char* StopSignals::Received() {
  if (received == SIGINT) return "SIGINT";
  return received == SIGTERM ? "SIGTERM" : nullptr;
}

}  // namespace augur
