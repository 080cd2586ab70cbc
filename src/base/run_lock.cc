#include "base/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace augur {

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

RunLock::~RunLock() {
  ::flock(fd_, LOCK_UN);  // closing does not do while a fork of this process holds the file, too
  ::close(fd_);
}

}  // namespace augur
