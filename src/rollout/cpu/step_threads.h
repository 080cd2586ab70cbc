// How many threads take part in a step of generation: all, or fewer while other processes need the cores.
//
// The threads of a step wait for each other many times. One that shares its core with another process may be
// stopped in the middle of an item, which the others cannot take, so that n threads next to a busy process
// are slower than n - 1, which leave it a core.
// Results do not depend on the number.
#pragma once

#include <chrono>

namespace augur {

// The choice by itself, told what was seen.
class ThreadChoice {
 public:
  explicit ThreadChoice(int most) : most_(most), threads_(most) {}

  int most() const { return most_; }
  int threads() const { return threads_; }
  // `seconds` went by with threads() threads, which together were ready to run and kept off their cores for
  // `kept_off` seconds.
  void Observe(double seconds, double kept_off);

 private:
  void Reduce(double cores_lost);

  int most_, threads_;
  int warnings_ = 0;     // times in a row that there were too many
  bool trying_ = false;  // one more than before, to see whether the cores are free again
  double calm_ = 0;      // seconds since the last change
  double patience_ = 0;  // how many of them until the next try
};

// Sets OpenMP's number of threads for the calling thread, and puts it back at the end.
class StepThreads {
 public:
  class Scope {
   public:
    explicit Scope(StepThreads* threads);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const int before_;
  };

  int threads() const { return choice_.threads(); }

  // Looks again where some time has gone by, and sets the number for the parallel regions that follow. Within
  // a Scope, outside of parallel regions. Where the kernel does not tell how long threads were kept off their
  // cores (/proc/self/task/ID/schedstat), the number stays.
  void Adapt();

 private:
  using Clock = std::chrono::steady_clock;

  ThreadChoice choice_{1};
  Clock::time_point looked_;
};

}  // namespace augur
