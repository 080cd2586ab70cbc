#include "train/run_guard.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace augur {
namespace {

volatile std::sig_atomic_t received = 0;

void OnSignal(int signal) {
  received = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& run) {
  std::error_code fault;
  std::filesystem::create_directories(run, fault);
  if (fault) throw Error(run.string(), "cannot make the run directory: " + fault.message(), "set run.dir");
  const std::filesystem::path path = run / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw Error(path.string(), std::strerror(errno), "check the permissions of the run directory");
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd_);
    throw Error(run.string(), "another process is using this run directory",
                "wait for it to end, or set run.dir to another directory");
  }
}

RunLock::~RunLock() { ::close(fd_); }

StopSignals::StopSignals() {
  received = 0;
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

const char* StopSignals::Received() {
  if (received == SIGINT) return "SIGINT";
  return received == SIGTERM ? "SIGTERM" : nullptr;
}

}  // namespace augur
