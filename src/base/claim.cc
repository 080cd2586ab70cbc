#include "base/claim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? "?" : id;
}

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

// Where process numbers mean the same: the machine since it was started, and the container.
std::string ProcessSpace() {
  std::error_code ignored;
  const std::string space = fs::read_symlink("/proc/self/ns/pid", ignored).string();
  return HostName() + " " + BootId() + " " + (space.empty() ? "?" : space);
}

std::string Owner() { return ProcessSpace() + " " + std::to_string(::getpid()); }

// Ended, but not yet collected by whoever started it.
bool IsZombie(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t name_end = text.rfind(')');  // a program's name may hold anything
  return name_end != std::string::npos && text.substr(name_end).starts_with(") Z");
}

// Whether the owner is known to be dead. Of other machines, some of which may bear the same name, nothing is
// known.
bool OwnerIsGone(const fs::path& file) {
  std::string host, boot, space;
  pid_t pid = 0;
  std::ifstream text(file);
  if (!(text >> host >> boot >> space >> pid)) return false;
  if (host + " " + boot + " " + space != ProcessSpace()) return false;
  return (::kill(pid, 0) != 0 && errno == ESRCH) || IsZombie(pid);
}

// Creates the file with this process as its owner; false where it exists.
bool CreateOnce(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0 && errno == EEXIST) return false;
  const std::string owner = Owner();
  const bool written =
      fd >= 0 && ::write(fd, owner.data(), owner.size()) == static_cast<ssize_t>(owner.size());
  const int fault = errno;
  if (fd >= 0) ::close(fd);
  if (!written) {
    if (fd >= 0) ::unlink(file.c_str());  // nobody would give it back
    throw Error(file.string(), std::strerror(fault), "see that the folder can be written");
  }
  return true;
}

void Touch(const fs::path& file) { ::utimensat(AT_FDCWD, file.c_str(), nullptr, 0); }

// When the file was last renewed, in seconds; a negative number where it is gone.
double RenewedAt(const fs::path& file) {
  struct stat status = {};
  if (::stat(file.c_str(), &status) != 0) return -1;
  return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
}

// The time by the clock of whoever keeps the folder, which may be another machine.
double FolderTime(const fs::path& folder) {
  const fs::path probe = folder / (".clock-" + HostName() + "-" + std::to_string(::getpid()));
  std::ofstream(probe) << "";
  Touch(probe);
  const double now = RenewedAt(probe);
  std::error_code ignored;
  fs::remove(probe, ignored);
  return now;
}

bool HasExpired(const fs::path& file) {
  const double renewed = RenewedAt(file);
  if (renewed < 0) return false;  // given back just now: the next look will find it so
  return FolderTime(file.parent_path()) - renewed > static_cast<double>(kClaimExpires.count());
}

fs::path ClaimFile(const fs::path& folder, const std::string& name, int number) {
  return folder / (name + "." + std::to_string(number));
}

// The highest number a claim on `name` has; 0 where there is none. Lower ones may be gone: an owner that was
// taken for dead and was not gives its own back.
int LastNumber(const fs::path& folder, const std::string& name) {
  int last = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(name + ".")) continue;
    const char *begin = file.data() + name.size() + 1, *end = file.data() + file.size();
    int number = 0;
    const auto [stop, fault] = std::from_chars(begin, end, number);
    if (fault == std::errc() && stop == end) last = std::max(last, number);
  }
  return last;
}

}  // namespace

std::unique_ptr<Claim> Claim::Take(const fs::path& folder, const std::string& name) {
  std::error_code fault;
  fs::create_directories(folder, fault);
  if (fault) throw Error(folder.string(), fault.message(), "choose a folder that can be written");
  const int last = LastNumber(folder, name);
  if (last > 0) {
    const fs::path held = ClaimFile(folder, name, last);
    if (!OwnerIsGone(held) && !HasExpired(held)) return nullptr;
  }
  const fs::path file = ClaimFile(folder, name, last + 1);
  return CreateOnce(file) ? std::unique_ptr<Claim>(new Claim(file)) : nullptr;
}

Claim::Claim(fs::path file) : file_(std::move(file)), renewing_([this] { Renew(); }) {}

Claim::~Claim() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  renewing_.join();
  std::error_code ignored;
  fs::remove(file_, ignored);
}

void Claim::Renew() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kClaimRenewed, [this] { return ending_; })) Touch(file_);
}

}  // namespace augur
