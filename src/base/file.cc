#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace augur {
namespace {

// Where a path that is not absolute begins.
std::string RelativeTo(const std::filesystem::path& path) {
  std::error_code none;
  const std::filesystem::path here = std::filesystem::current_path(none);
  return path.is_absolute() || here.empty()
             ? ""
             : fmt::format(", which is relative to the working directory, {}", here.string());
}

Error SystemError(const std::filesystem::path& path, std::string_view action, int code) {
  const std::string remedy = code == ENOENT || code == ENOTDIR ? "check the path" + RelativeTo(path)
                             : code == ENOSPC                  ? "free some disk space and run again"
                             : code == EACCES                  ? "check the permissions"
                                                               : "";
  return Error(path.string(), fmt::format("cannot {}: {}", action, std::strerror(code)), remedy);
}

// Closes a descriptor at the end of a scope, also when an exception leaves it.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Something to write to that is no file of its own. The links under /dev and /proc lead to what this process
// has open.
bool IsDeviceOrPipe(const std::filesystem::path& path) {
  if (path.string().starts_with("/dev/") || path.string().starts_with("/proc/")) return true;
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

size_t RegularFileSize(const Descriptor& file, const std::filesystem::path& path) {
  struct stat status;
  if (::fstat(file.get(), &status) != 0) throw SystemError(path, "read its size", errno);
  if (S_ISDIR(status.st_mode))
    throw Error(path.string(), "is a directory, not a file", "name the file itself");
  return static_cast<size_t>(status.st_size);
}

}  // namespace

std::string ReadFile(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw SystemError(path, "open", errno);
  std::string content;
  content.reserve(RegularFileSize(file, path));
  char block[1 << 16];
  while (true) {
    const ssize_t got = ::read(file.get(), block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError(path, "read", errno);
    if (got == 0) return content;
    content.append(block, static_cast<size_t>(got));
  }
}

void WriteFileAtomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.Write(content);
  file.Commit();
}

void RequireWritable(const std::filesystem::path& path) {
  if (!IsDeviceOrPipe(path)) const AtomicFile probe(path);
}

std::string FromHome(std::string path) {
  const char* home = std::getenv("HOME");
  return home != nullptr && path.starts_with("~/") ? path.replace(0, 1, home) : path;
}

void RefuseInput(const std::string& output, std::span<const std::string> inputs, std::string_view flag) {
  std::error_code none;
  for (const std::string& input : inputs) {
    if (!std::filesystem::equivalent(output, input, none)) continue;
    throw Error(flag, fmt::format("is {}, which this command reads", output), "name another file");
  }
}

AtomicFile::AtomicFile(const std::filesystem::path& path)
    : direct_(IsDeviceOrPipe(path)),
      path_(!direct_ && std::filesystem::is_symlink(path) ? std::filesystem::weakly_canonical(path) : path),
      temporary_(direct_ ? path_.string() : fmt::format("{}.tmp.{}", path_.string(), ::getpid())) {
  std::error_code none;
  if (std::filesystem::is_directory(path_, none)) {
    throw Error(path.string(), "is a directory", "name a file in it");
  }
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CLOEXEC | (direct_ ? 0 : O_CREAT | O_TRUNC), 0644);
  if (fd_ < 0) throw SystemError(path, "create", errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!direct_) ::unlink(temporary_.c_str());
}

void AtomicFile::Write(std::string_view piece) {
  while (!piece.empty()) {
    const ssize_t written = ::write(fd_, piece.data(), piece.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw SystemError(path_, "write", errno);
    piece.remove_prefix(static_cast<size_t>(written));
  }
}

void AtomicFile::Commit() {
  if (direct_) {
    if (::close(std::exchange(fd_, -1)) != 0) throw SystemError(path_, "write", errno);
    return;
  }
  if (::fsync(fd_) != 0) throw SystemError(path_, "sync to disk", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw SystemError(path_, "replace", errno);
  ::close(std::exchange(fd_, -1));
  // The rename itself is durable only once the directory is synced.
  const std::filesystem::path parent = path_.has_parent_path() ? path_.parent_path() : ".";
  const Descriptor directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) ::fsync(directory.get());
}

void RefuseLfsPointer(std::string_view content, const std::filesystem::path& path) {
  if (!content.starts_with("version https://git-lfs")) return;
  throw Error(path.string(), "is a git-lfs pointer, not the file itself",
              "run 'git lfs pull' in that directory or download the file again");
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: to open a pipe that nobody writes to would wait for ever.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw SystemError(path, "open", errno);
  struct stat status;
  if (::fstat(file.get(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    throw Error(path.string(), "is a pipe or a device, and is read more than once",
                "write it to a file first");
  }
  size_ = RegularFileSize(file, path);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw SystemError(path, "map into memory", errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void ReleasePages(std::span<const std::byte> mapped) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(mapped.data());
  const uintptr_t first = (begin + page - 1) / page * page, last = (begin + mapped.size()) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace augur
