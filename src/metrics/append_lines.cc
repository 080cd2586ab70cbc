#include "metrics/append_lines.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"

namespace augur {
namespace {

bool EndsWithinLine(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

}  // namespace

void AppendLines(const std::filesystem::path& path, std::string_view lines) {
  const bool broken = EndsWithinLine(path);
  std::ofstream file(path, std::ios::binary | std::ios::app);
  if (file && broken) file << '\n';
  if (!(file << lines) || !file.flush()) {
    throw Error(path.string(), std::strerror(errno), "check that the directory exists and has space left");
  }
}

}  // namespace augur
