#include "base/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/tell.h"

namespace augur {
namespace {

// Lustre without `-o flock` and some NFS and BeeGFS mounts.
bool HasNoLocks(int error) { return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP; }

}  // namespace

RunLock::RunLock(const std::filesystem::path& run) {
  std::error_code fault;
  std::filesystem::create_directories(run, fault);
  if (fault) throw Error(run.string(), "cannot make the run directory: " + fault.message(), "set run.dir");
  const std::filesystem::path path = run / kRunLockFile;
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw Error(path.string(), std::strerror(errno), "check the permissions of the run directory");
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  if (HasNoLocks(error)) {
    Tell(
        "augur: warning: {}: the file system has no locks ({}); a second process with this run directory "
        "would "
        "not be refused\n",
        run.string(), std::strerror(error));
    return;
  }
  ::close(fd_);
  if (error == EWOULDBLOCK) {
    throw Error(run.string(), "another process is using this run directory",
                "wait for it to end, or set run.dir to another directory");
  }
  throw Error(path.string(), fmt::format("cannot lock the run directory: {}", std::strerror(error)),
              "set run.dir to a directory of another file system");
}

void RunLock::Mark(const std::string& text) const {
  if (::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, text.data(), text.size(), 0) == std::ssize(text) &&
      ::fsync(fd_) == 0) {
    return;
  }
  throw Error(kRunLockFile, std::strerror(errno), "make room in the run directory");
}

RunLock::~RunLock() {
  ::flock(fd_, LOCK_UN);  // closing does not do while a fork of this process holds the file, too
  ::close(fd_);
}

}  // namespace augur
