#include "kernels/thread_team.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace augur {
namespace {

// OpenMP's number of threads within a scope.
class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }

 private:
  const int before_;
};

// How often each item of a loop was run.
std::vector<int> Runs(int64_t count, bool worth = true) {
  std::vector<std::atomic<int>> runs(count);
  ParallelFor(count, worth, [&](int64_t i) { ++runs[i]; });
  return {runs.begin(), runs.end()};
}

class ThreadTeamTest : public testing::TestWithParam<int> {};

TEST_P(ThreadTeamTest, RunsEachItemOnce) {
  const Threads threads(GetParam());
  for (const int64_t count : {0, 1, 2, 3, 7, 64, 1000, 100'003}) {
    EXPECT_EQ(Runs(count), std::vector<int>(count, 1)) << count;
  }
}

TEST_P(ThreadTeamTest, RunsEachItemOnceInManyShortLoops) {
  const Threads threads(GetParam());
  std::vector<int64_t> sums(37);
  for (int64_t loop = 0; loop < 20'000; ++loop) {
    ParallelFor(37, true, [&](int64_t i) { sums[i] += loop; });
    if (loop % 1000 == 999)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the others fall asleep
  }
  EXPECT_EQ(sums, std::vector<int64_t>(37, 20'000LL * 19'999 / 2));
}

TEST_P(ThreadTeamTest, SeesWhatTheLoopBeforeWrote) {
  const Threads threads(GetParam());
  std::vector<int64_t> values(512, 1), sums(512);
  for (int step = 0; step < 200; ++step) {
    ParallelFor(512, true, [&](int64_t i) { sums[i] = values[i] + values[(i * 7 + step) % 512]; });
    ParallelFor(512, true, [&](int64_t i) { values[i] = sums[511 - i] % 1'000'003; });
  }
  std::vector<int64_t> alone(512, 1), next(512);
  for (int step = 0; step < 200; ++step) {
    for (int64_t i = 0; i < 512; ++i) next[i] = alone[i] + alone[(i * 7 + step) % 512];
    for (int64_t i = 0; i < 512; ++i) alone[i] = next[511 - i] % 1'000'003;
  }
  EXPECT_EQ(values, alone);
}

INSTANTIATE_TEST_SUITE_P(Counts, ThreadTeamTest, testing::Values(1, 2, 3, 5, 16));

TEST(ThreadTeam, TakesAsManyThreadsAsOpenMp) {
  const Threads threads(3);
  std::atomic<int> met{0};
  ParallelFor(3, true, [&](int64_t) {  // ends when three threads are in it at once
    ++met;
    while (met < 3) std::this_thread::yield();
  });
  EXPECT_EQ(met, 3);
}

TEST(ThreadTeam, StaysOnTheCallingThreadWhereItIsNotWorthMore) {
  const Threads threads(4);
  std::set<std::thread::id> seen;
  std::vector<int64_t> order;
  ParallelFor(100, false, [&](int64_t i) {
    seen.insert(std::this_thread::get_id());
    order.push_back(i);
  });
  EXPECT_EQ(seen, std::set{std::this_thread::get_id()});
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(ThreadTeam, RunsALoopWithinALoopOnTheThreadThatCallsIt) {
  const Threads threads(4);
  EXPECT_FALSE(InParallel());
  std::atomic<int> runs{0};
  ParallelFor(8, true, [&](int64_t) {
    EXPECT_TRUE(InParallel());
    const std::thread::id mine = std::this_thread::get_id();
    ParallelFor(50, true, [&](int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), mine);
      ++runs;
    });
  });
  EXPECT_EQ(runs, 400);
  EXPECT_FALSE(InParallel());
#pragma omp parallel num_threads(2)
  {
    EXPECT_TRUE(InParallel());
    EXPECT_EQ(TeamThreads(), 1);
  }
}

TEST(ThreadTeam, AThreadThatIsHeldUpDelaysNoMoreThanItsItem) {
  const Threads threads(4);
  std::atomic<int> others{0};
  ParallelFor(64, true, [&](int64_t i) {
    if (i == 0) {
      // Ends when all other items are done, those of this thread's own share by the others.
      while (others < 63) std::this_thread::yield();
    } else {
      ++others;
    }
  });
  EXPECT_EQ(others, 63);
}

TEST(ThreadTeamDeathTest, WhatASharedLoopThrowsEndsTheProgram) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto fail = [](int64_t i) {
    if (i == 0) throw std::runtime_error("of the work");
  };
  EXPECT_THROW(ParallelFor(10, false, fail), std::runtime_error);
  EXPECT_FALSE(InParallel());
  EXPECT_DEATH(
      {
        const Threads threads(2);
        ParallelFor(10, true, fail);
      },
      "");
}

TEST(ThreadTeam, ThreadsHaveTeamsOfTheirOwn) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      const Threads threads(3);
      for (int i = 0; i < 500; ++i) wrong += Runs(50) != std::vector<int>(50, 1);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadTeam, WorksInAFork) {
  const Threads threads(3);
  EXPECT_EQ(Runs(100), std::vector<int>(100, 1));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    std::thread([] {  // the fork's first thread has the parent's team, another one has none
      const Threads in_thread(3);
      if (Runs(100) != std::vector<int>(100, 1)) ::_exit(1);
    })
        .join();
    if (Runs(100) != std::vector<int>(100, 1)) ::_exit(1);
    std::exit(0);  // with the destructors of what the thread holds
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

#if !defined(__SANITIZE_ADDRESS__)  // whose own memory no limit may hold
TEST(ThreadTeamDeathTest, DoesAllItselfWhereTheSystemHasNoMoreThreads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process that has no helpers yet
  const auto run_without_threads = [] {
    const Threads threads(4);
    std::vector<std::atomic<int>> runs(100);
    const rlimit nothing_more{1, RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &nothing_more);
    for (int loop = 0; loop < 3; ++loop) ParallelFor(100, true, [&](int64_t i) { ++runs[i]; });
    ::_exit(std::ranges::all_of(runs, [](const auto& count) { return count == 3; }) ? 0 : 1);
  };
  EXPECT_EXIT(run_without_threads(), testing::ExitedWithCode(0), "");
}
#endif

TEST(ThreadTeam, TellsHowLongItsThreadsWereKeptOffTheirCores) {
  const Threads threads(8);
  KeptOffSinceLastLook();
  const auto busy = [] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(40);
    while (std::chrono::steady_clock::now() < end) continue;
  };
  ParallelFor(8, true, [&](int64_t) { busy(); });
  const double cores = std::thread::hardware_concurrency();
  const double kept_off = KeptOffSinceLastLook();
  EXPECT_GE(kept_off, 0);
  const bool told = access("/proc/thread-self/schedstat", R_OK) == 0;
  if (cores <= 4 && told) {
    EXPECT_GT(kept_off, 0.01);
  }
}

}  // namespace
}  // namespace augur
