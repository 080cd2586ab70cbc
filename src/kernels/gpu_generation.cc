#include "kernels/gpu_generation.h"

#include <cstdlib>
#include <regex>
#include <string>

#include "base/error.h"

namespace augur {
namespace {

constexpr int kHopper = 90;

std::string AsText(int generation) {
  return std::to_string(generation / 10) + "." + std::to_string(generation % 10);
}

}  // namespace

int NamedGpuGeneration() {
  const char* value = std::getenv("AUGUR_GPU");
  const std::string name = value == nullptr ? "" : value;
  if (name.empty()) return 0;
  std::smatch parts;
  if (!std::regex_match(name, parts, std::regex("([1-9][0-9]?)\\.([0-9])"))) {
    throw Error("AUGUR_GPU=" + name, "names no compute capability",
                "write one as 8.0, or leave it unset for that of the GPU");
  }
  return 10 * std::stoi(parts[1]) + std::stoi(parts[2]);
}

int ChooseGpuGeneration(int named, int present) {
  if (named == 0 || named == present) return present;
  // Hopper's own kernels run on no other GPU; what newer ones are given, Hopper has, too.
  if (named == kHopper || (named > present && present < kHopper)) {
    throw Error("AUGUR_GPU=" + AsText(named),
                "a GPU of compute capability " + AsText(present) + " lacks its kernels",
                "name an older one, or leave it unset for " + AsText(present));
  }
  return named;
}

}  // namespace augur
