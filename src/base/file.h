// Files: whole reads, memory maps, and writes that are either complete or absent.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace augur {

// The path with ~/ at its beginning expanded, as a shell does, though not in key=~/path.
std::string FromHome(std::string path);

// The whole file as bytes. Throws Error naming the path.
std::string ReadFile(const std::filesystem::path& path);

// Writes to a temporary file next to `path`, syncs it and renames it over `path`, so that a reader sees the
// old content or the new one and never a part. Throws Error (disk full, no permission) and leaves `path`
// untouched. A symbolic link stays one: what it leads to is replaced. Devices and pipes are written to.
void WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

// Throws Error where WriteFileAtomically would, as far as can be known: before the work whose result goes
// there.
void RequireWritable(const std::filesystem::path& path);

// Throws Error where a command would write to a file that it reads.
void RefuseInput(const std::string& output, std::span<const std::string> inputs, std::string_view flag);

// The same for content that comes in pieces: Write them, then Commit. Without Commit nothing remains.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Write(std::string_view piece);
  // Syncs the file and renames it to its path.
  void Commit();

 private:
  const bool direct_;  // a device or a pipe, which cannot be replaced
  const std::filesystem::path path_;
  const std::filesystem::path temporary_;
  int fd_;
};

// Throws when `content` is the text that git-lfs leaves in place of a file it has not fetched.
void RefuseLfsPointer(std::string_view content, const std::filesystem::path& path);

// A read-only memory map; the bytes stay valid while the object lives. An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Tells the system that these bytes of a memory map will not be read again soon, so that they need not stay
// in this process's memory. They remain valid.
void ReleasePages(std::span<const std::byte> mapped);

}  // namespace augur
