// The threads of generation on a CPU. A step has hundreds of short loops, so its threads wait for the next
// one instead of being woken for it, and take each other's items: one that is slower, or comes late because
// its core is busy, holds the others up by no more than the few items in its hands.
#pragma once

#include <cstdint>

namespace augur {

// Calls work(i) once for every i < count, in any order, on as many threads as OpenMP has for the calling one
// (omp_set_num_threads); on this thread alone, in order, where they are not `worth` it or the call comes from
// a loop that is already shared. What work throws goes to the caller there, and ends the program where the
// loop is shared.
template <typename Work>
void ParallelFor(int64_t count, bool worth, const Work& work);

// Whether this thread is in a loop that several threads share, of ParallelFor or of OpenMP.
bool InParallel();

// How long the calling thread and those that help it have been ready to run and not running since each was
// asked before, in seconds; 0 where the kernel does not tell.
double KeptOffSinceLastLook();

// A loop without its type.
struct SharedLoop {
  void (*run)(const void* work, int64_t begin, int64_t end);
  const void* work;
  int64_t count;
};
int TeamThreads();
void RunShared(const SharedLoop& loop, int threads) noexcept;

template <typename Work>
void ParallelFor(int64_t count, bool worth, const Work& work) {
  const int threads = worth && count > 1 ? TeamThreads() : 1;
  if (threads == 1) {
    for (int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  const auto run = [](const void* erased, int64_t begin, int64_t end) {
    const Work& each = *static_cast<const Work*>(erased);
    for (int64_t i = begin; i < end; ++i) each(i);
  };
  RunShared({run, &work, count}, threads);
}

}  // namespace augur
