#include "rollout/cpu/step_threads.h"

#include <fcntl.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace augur {
namespace {

// Between two looks: some of the scheduler's time slices, each a few milliseconds.
constexpr double kLookSeconds = 0.03;
// A longer pause was no generation: what happened then says nothing.
constexpr double kPauseSeconds = 2;
constexpr double kFirstPatience = 0.25, kLastPatience = 2;
// Noise of an idle machine.
constexpr double kNoiseCores = 0.15;

// How long the calling thread has been ready and not running, in seconds; negative where that is not known.
double KeptOffSeconds() {
  const int fd = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  char text[128] = {};
  const ssize_t size = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  if (size <= 0) return -1;
  char* end = nullptr;
  std::strtoull(text, &end, 10);  // the time on its core
  return static_cast<double>(std::strtoull(end, nullptr, 10)) * 1e-9;
}

// Of all threads together since each was asked before.
double KeptOffSinceLastLook() {
  double sum = 0;
#pragma omp parallel reduction(+ : sum)
  {
    thread_local double before = -1;
    const double now = KeptOffSeconds();
    if (before >= 0 && now >= 0) sum += now - before;
    before = now;
  }
  return sum;
}

}  // namespace

void ThreadChoice::Observe(double seconds, double kept_off) {
  const double lost = kept_off / seconds;
  // Threads that lose a core's time together lose it all, since the others wait; one fewer loses 1/n.
  if (threads_ > 1 && lost > std::max(kNoiseCores, 0.5 / threads_)) {
    if (trying_ || ++warnings_ > 1) Reduce(lost);
    return;
  }
  warnings_ = 0;
  if (trying_) {
    trying_ = false;
    patience_ = kFirstPatience;
    calm_ = 0;
  }
  if (threads_ == most_) return;
  calm_ += seconds;
  if (calm_ < patience_) return;
  ++threads_;
  trying_ = true;
}

void ThreadChoice::Reduce(double cores_lost) {
  patience_ = trying_ ? std::min(2 * patience_, kLastPatience) : kFirstPatience;
  threads_ = std::max(1, threads_ - std::max(1, static_cast<int>(cores_lost)));
  trying_ = false;
  warnings_ = 0;
  calm_ = 0;
}

StepThreads::Scope::Scope(StepThreads* threads) : before_(omp_get_max_threads()) {
  if (before_ != threads->choice_.most()) threads->choice_ = ThreadChoice(before_);
  omp_set_num_threads(threads->choice_.threads());
}

StepThreads::Scope::~Scope() { omp_set_num_threads(before_); }

void StepThreads::Adapt() {
  if (choice_.most() == 1 || omp_in_parallel() != 0) return;
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - looked_).count();
  if (seconds < kLookSeconds) return;
  const double kept_off = KeptOffSinceLastLook();
  looked_ = now;
  if (seconds > kPauseSeconds) return;
  choice_.Observe(seconds, kept_off);
  omp_set_num_threads(choice_.threads());
}

}  // namespace augur
