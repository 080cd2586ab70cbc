#include "base/stop_signals.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>

namespace augur {
namespace {

constexpr int kCallback = 1000;                 // in a signal's place where Request was called
constexpr int64_t kOneRequest = 1'000'000'000;  // nanoseconds within which signals count as one

std::atomic<int> received = 0;
std::atomic<int64_t> received_at = 0;
std::atomic<int> scopes = 0, living = 0;
std::atomic<bool> lost_output = false;
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

// Of stdout and stderr, a pipe without a reader or a terminal that hung up: whoever prints would fail.
bool DropLostOutput() {
  bool lost = false;
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    pollfd state{output, POLLOUT, 0};
    if (::poll(&state, 1, 0) != 1 || (state.revents & (POLLERR | POLLHUP)) == 0) continue;
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, output);
    ::close(nowhere);
    lost = lost_output = true;
  }
  return lost;
}

void OnHangup(int signal) {
  const int error = errno;
  DropLostOutput();
  OnSignal(signal);
  errno = error;
}

void OnBrokenPipe(int signal) {
  const int error = errno;
  if (DropLostOutput()) OnSignal(signal);
  errno = error;
}

struct sigaction Handle(int signal, void (*handler)(int)) {
  struct sigaction action{}, before{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, &before);
  return before;
}

}  // namespace

StopSignals::StopSignals()
    : interrupt_(Handle(SIGINT, OnSignal)),
      terminate_(Handle(SIGTERM, OnSignal)),
      hangup_(Handle(SIGHUP, OnHangup)) {
  if (living++ == 0) received = 0;
  if (hangup_.sa_handler == SIG_IGN) ::sigaction(SIGHUP, &hangup_, nullptr);
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

StopSignals::~StopSignals() {
  --living;
  ::sigaction(SIGINT, &interrupt_, nullptr);
  ::sigaction(SIGTERM, &terminate_, nullptr);
  ::sigaction(SIGHUP, &hangup_, nullptr);
}

int StopSignals::Signal() { return received; }

const char* StopSignals::NameOf(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGPIPE:
      return "SIGPIPE";
    case kCallback:
      return "a callback";
    default:
      return nullptr;
  }
}

void StopSignals::Request() {
  if (received == 0) OnSignal(kCallback);
}

StopOnLostReader::StopOnLostReader() : pipe_(Handle(SIGPIPE, OnBrokenPipe)) {}

StopOnLostReader::~StopOnLostReader() {
  std::fflush(stdout);  // which may find the reader gone
  if (lost_output.exchange(false)) {
    std::fflush(stdout);
    std::clearerr(stdout);
  }
  ::sigaction(SIGPIPE, &pipe_, nullptr);
}

StopScope::StopScope() { ++scopes; }

StopScope::~StopScope() { --scopes; }

void CheckStop() {
  if (scopes > 0 && received != 0) throw Stopped();
}

}  // namespace augur
