#include "rollout/cpu/step_threads.h"

#include <gtest/gtest.h>
#include <omp.h>

namespace augur {
namespace {

constexpr double kLook = 0.03;

// Seconds of generation with every core's share of a busy process, `load` of them next to `cores` cores, seen
// look by look; returns the mean number of threads.
double MeanThreads(ThreadChoice* choice, int cores, double load, double seconds) {
  double sum = 0;
  int looks = 0;
  for (double t = 0; t < seconds; t += kLook, ++looks) {
    sum += choice->threads();
    const double wanted = choice->threads() + load;
    choice->Observe(kLook, wanted > cores ? kLook * (wanted - cores) / 2 : 0);
  }
  return sum / looks;
}

TEST(ThreadChoice, KeepsAllThreadsOnAnIdleMachine) {
  ThreadChoice choice(2);
  EXPECT_EQ(MeanThreads(&choice, 2, 0, 10), 2);
  for (int i = 0; i < 100; ++i) {  // something short, now and then
    choice.Observe(kLook, 0.9 * kLook);
    EXPECT_EQ(choice.threads(), 2);
    for (int calm = 0; calm < 5; ++calm) choice.Observe(kLook, 0.02 * kLook);
  }
}

TEST(ThreadChoice, LeavesABusyProcessACoreAndTakesItBack) {
  for (const int cores : {2, 4, 16}) {
    ThreadChoice choice(cores);
    EXPECT_LT(MeanThreads(&choice, cores, 1, 20), cores - 0.9) << cores;
    MeanThreads(&choice, cores, 0, 3);
    EXPECT_EQ(choice.threads(), cores) << cores;
  }
}

TEST(ThreadChoice, ReducesToWhatManyBusyProcessesLeaveButKeepsOne) {
  ThreadChoice choice(16);
  EXPECT_NEAR(MeanThreads(&choice, 16, 8, 20), 8, 0.5);
  ThreadChoice small(2);
  EXPECT_LT(MeanThreads(&small, 2, 5, 20), 1.1);
  EXPECT_GE(small.threads(), 1);
}

TEST(StepThreads, PutBackTheNumberOfThreads) {
  const int before = omp_get_max_threads();
  {
    StepThreads threads;
    const StepThreads::Scope scope(&threads);
    threads.Adapt();
  }
  EXPECT_EQ(omp_get_max_threads(), before);
}

}  // namespace
}  // namespace augur
