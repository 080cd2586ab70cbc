#include "rollout/cpu/step_threads.h"

#include <omp.h>

#include <algorithm>

#include "kernels/thread_team.h"

namespace augur {
namespace {

// Between two looks: some of the scheduler's time slices, each a few milliseconds.
constexpr double kLookSeconds = 0.03;
// A longer pause was no generation: what happened then says nothing.
constexpr double kPauseSeconds = 2;
constexpr double kFirstPatience = 0.25, kLastPatience = 2;
// Noise of an idle machine.
constexpr double kNoiseCores = 0.15;

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
  if (choice_.most() == 1 || InParallel()) return;
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
