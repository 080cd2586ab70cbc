#include "base/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

namespace augur {
namespace {

// Stdout becomes a pipe, whose other end is returned.
int PipeStdout() {
  int ends[2];
  if (::pipe(ends) != 0) std::exit(9);
  ::dup2(ends[1], STDOUT_FILENO);
  return ends[0];
}

TEST(StopSignals, SignalsWithinASecondCountAsOne) {
  const StopSignals signals;
  EXPECT_EQ(StopSignals::Received(), nullptr);
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  std::raise(SIGINT);
  EXPECT_STREQ(StopSignals::Received(), "SIGTERM");
}

TEST(StopSignalsDeathTest, ALaterSecondOneEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopSignals signals;
        std::raise(SIGTERM);
        std::this_thread::sleep_for(std::chrono::milliseconds(1100));
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(StopSignals, AHangupCountsUnlessItIsIgnored) {
  const auto before = std::signal(SIGHUP, SIG_DFL);
  {
    const StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_STREQ(StopSignals::Received(), "SIGHUP");
  }
  std::signal(SIGHUP, SIG_IGN);
  const StopSignals signals;
  std::raise(SIGHUP);
  EXPECT_EQ(StopSignals::Received(), nullptr);
  std::signal(SIGHUP, before);
}

TEST(StopSignalsDeathTest, ALostReaderCountsAndOutputGoesOnToNowhere) {
  EXPECT_EXIT(
      {
        const int reader = PipeStdout();
        const StopSignals signals;
        const StopOnLostReader lost_reader;
        const bool read = ::write(STDOUT_FILENO, "a", 1) == 1 && StopSignals::Received() == nullptr;
        ::close(reader);
        const bool lost = ::write(STDOUT_FILENO, "b", 1) == -1 && StopSignals::Signal() == SIGPIPE;
        const bool nowhere = ::write(STDOUT_FILENO, "c", 1) == 1;
        std::exit(read && lost && nowhere ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopSignalsDeathTest, LastWordsThatNobodyReadsAreNoFault) {
  EXPECT_EXIT(
      {
        const int reader = PipeStdout();
        {
          const StopSignals signals;
          const StopOnLostReader lost_reader;
          ::close(reader);
          std::fputs("done", stdout);
        }
        std::exit(std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopSignals, ABrokenPipeThatIsNoOutputDoesNotCount) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const StopSignals signals;
  const StopOnLostReader lost_reader;
  EXPECT_EQ(::write(ends[1], "a", 1), -1);
  EXPECT_EQ(StopSignals::Received(), nullptr);
  ::close(ends[1]);
}

TEST(StopSignals, ARequestCountsAsTheFirstSignalAndNeverAsASecond) {
  const StopSignals signals;
  StopSignals::Request();
  EXPECT_STREQ(StopSignals::Received(), "a callback");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  StopSignals::Request();
  EXPECT_STREQ(StopSignals::Received(), "a callback");
}

TEST(StopSignals, PutsBackWhatHandledThemBefore) {
  const auto before = std::signal(SIGINT, SIG_IGN);
  {
    const StopSignals signals;
  }
  EXPECT_EQ(std::signal(SIGINT, before), SIG_IGN);
}

TEST(CheckStop, ThrowsOnlyInsideAScopeAndAfterASignal) {
  const StopSignals signals;
  {
    const StopScope scope;
    EXPECT_NO_THROW(CheckStop());
  }
  std::raise(SIGTERM);
  EXPECT_NO_THROW(CheckStop());
  const StopScope scope;
  EXPECT_THROW(CheckStop(), Stopped);
}

}  // namespace
}  // namespace augur
