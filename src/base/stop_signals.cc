#include "base/stop_signals.h"

#include <atomic>
#include <cstdint>
#include <ctime>

namespace augur {
namespace {

constexpr int64_t kOneRequest = 1'000'000'000;  // nanoseconds within which signals count as one

std::atomic<int> received = 0;
std::atomic<int64_t> received_at = 0;
std::atomic<int> scopes = 0, living = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t Now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void OnSignal(int signal) {
  const int64_t now = Now();
  if (received == 0) {
    received_at = now;
    received = signal;
  } else if (now - received_at >= kOneRequest) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

StopSignals::StopSignals() {
  if (living++ == 0) received = 0;
  struct sigaction action{};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &interrupt_);
  ::sigaction(SIGTERM, &action, &terminate_);
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

StopSignals::~StopSignals() {
  --living;
  ::sigaction(SIGINT, &interrupt_, nullptr);
  ::sigaction(SIGTERM, &terminate_, nullptr);
}

const char* StopSignals::Received() {
  if (received == SIGINT) return "SIGINT";
  return received == SIGTERM ? "SIGTERM" : nullptr;
}

void StopSignals::Request() {
  if (received == 0) OnSignal(SIGINT);
}

StopScope::StopScope() { ++scopes; }

StopScope::~StopScope() { --scopes; }

void CheckStop() {
  if (scopes > 0 && received != 0) throw Stopped();
}

}  // namespace augur
