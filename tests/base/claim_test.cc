#include "base/claim.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

namespace augur {
namespace {

namespace fs = std::filesystem;

class ClaimTest : public testing::Test {
 protected:
  ClaimTest() : folder_(fs::path(testing::TempDir()) / "augur_claims") { fs::remove_all(folder_); }
  ~ClaimTest() override { fs::remove_all(folder_); }
  const fs::path folder_;
};

TEST_F(ClaimTest, IsHeldByOneUntilItIsGivenBack) {
  std::unique_ptr<Claim> first = Claim::Take(folder_, "run");
  ASSERT_TRUE(first);
  EXPECT_FALSE(Claim::Take(folder_, "run"));
  EXPECT_TRUE(Claim::Take(folder_, "another"));
  first.reset();
  EXPECT_TRUE(Claim::Take(folder_, "run"));
}

TEST_F(ClaimTest, OnlyOneOfManyGetsIt) {
  std::atomic<int> taken = 0;
  std::vector<std::unique_ptr<Claim>> claims(8);
  std::vector<std::thread> threads;
  for (auto& claim : claims) {
    threads.emplace_back([&] {
      claim = Claim::Take(folder_, "run");
      if (claim) ++taken;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 1);
}

TEST_F(ClaimTest, OfAProcessThatDiedCanBeTakenOver) {
  fs::create_directories(folder_);
  const pid_t child = ::fork();
  if (child == 0) {
    Claim::Take(folder_, "run").release();  // dies with it
    ::_exit(0);
  }
  siginfo_t ended;
  ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  EXPECT_TRUE(Claim::Take(folder_, "run"));  // a zombie will not go on
  ::waitpid(child, nullptr, 0);
  const std::unique_ptr<Claim> next = Claim::Take(folder_, "run");
  EXPECT_TRUE(next);
  EXPECT_FALSE(Claim::Take(folder_, "run"));
}

TEST_F(ClaimTest, OfAnotherMachineExpiresOnlyWhenItIsNotRenewed) {
  fs::create_directories(folder_);
  const fs::path file = folder_ / "run.1";
  std::ofstream(file) << "another-machine 0-0 pid:[1] 1";
  EXPECT_FALSE(Claim::Take(folder_, "run"));
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  std::ofstream(file) << host << " 0-0 pid:[1] 999999999";  // of the same name, no more
  EXPECT_FALSE(Claim::Take(folder_, "run"));
  fs::last_write_time(file, fs::file_time_type::clock::now() - kClaimExpires - std::chrono::seconds(5));
  EXPECT_TRUE(Claim::Take(folder_, "run"));
}

TEST_F(ClaimTest, OfOneThatWasTakenForDeadAndGaveBackDoesNotFreeTheNext) {
  fs::create_directories(folder_);
  const fs::path silent = folder_ / "run.1";
  std::ofstream(silent) << "another-machine 0-0 pid:[1] 1";
  fs::last_write_time(silent, fs::file_time_type::clock::now() - kClaimExpires - std::chrono::seconds(5));
  const std::unique_ptr<Claim> next = Claim::Take(folder_, "run");
  ASSERT_TRUE(next);
  fs::remove(silent);
  EXPECT_FALSE(Claim::Take(folder_, "run"));
}

}  // namespace
}  // namespace augur
