#include "base/stop_signals.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace augur {
namespace {

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

TEST(StopSignals, ARequestCountsAsTheFirstSignalAndNeverAsASecond) {
  const StopSignals signals;
  StopSignals::Request();
  EXPECT_STREQ(StopSignals::Received(), "SIGINT");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  StopSignals::Request();
  EXPECT_STREQ(StopSignals::Received(), "SIGINT");
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
