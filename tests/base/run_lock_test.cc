#include "base/run_lock.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "message_of.h"

namespace {

int refusal = 0;  // errno of every flock; 0: the kernel's answer

}  // namespace

extern "C" int flock(int fd, int operation) noexcept {
  if (refusal == 0) return static_cast<int>(::syscall(SYS_flock, fd, operation));
  errno = refusal;
  return -1;
}

namespace augur {
namespace {

class RunLockOf : public testing::TestWithParam<int> {
 protected:
  void TearDown() override {
    refusal = 0;
    std::filesystem::remove_all(run_);
  }
  const std::filesystem::path run_ =
      std::filesystem::temp_directory_path() / ("augur-run-lock-" + std::to_string(getpid()));
};

TEST_F(RunLockOf, ASecondProcessIsRefusedAndLaterLetIn) {
  {
    const RunLock lock(run_);
    const std::string message = MessageOf([&] { const RunLock second(run_); });
    EXPECT_NE(message.find("another process is using this run directory"), std::string::npos) << message;
  }
  const RunLock again(run_);
}

TEST_P(RunLockOf, AFileSystemWithoutLocksGetsAWarning) {
  refusal = GetParam();
  testing::internal::CaptureStderr();
  {
    const RunLock lock(run_);
  }
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("the file system has no locks"), std::string::npos) << warning;
}
INSTANTIATE_TEST_SUITE_P(Errors, RunLockOf, testing::Values(ENOSYS, ENOLCK, EOPNOTSUPP));

TEST_F(RunLockOf, AnotherErrorIsReportedAsItIs) {
  refusal = EIO;
  const std::string message = MessageOf([&] { const RunLock lock(run_); });
  EXPECT_NE(message.find("cannot lock the run directory: Input/output error"), std::string::npos) << message;
}

}  // namespace
}  // namespace augur
