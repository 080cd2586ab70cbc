#include "kernels/gpu_generation.h"

#include <charconv>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace augur {
namespace {

constexpr int kHopper = 90;
constexpr int kOldest = 80;  // that kernels are written for

std::string AsText(int generation) {
  return std::to_string(generation / 10) + "." + std::to_string(generation % 10);
}

}  // namespace

void ThrowGpuWithoutKernels(int generation) {
  throw Error(
      "a GPU of compute capability " + AsText(generation), "this build of Augur holds no kernels for it",
      generation < kOldest ? "use the CPU (run.device=cpu, --device cpu); they are written for " +
                                 AsText(kOldest) + " and later"
                           : "build Augur on this machine, or use the CPU (run.device=cpu, --device cpu)");
}

int NamedGpuGeneration() {
  const char* value = std::getenv("AUGUR_GPU");
  const std::string name = value == nullptr ? "" : value;
  if (name.empty()) return 0;
  const char* end = name.data() + name.size();
  int major = 0;
  const auto [point, fault] = std::from_chars(name.data(), end, major);
  const bool written =
      fault == std::errc() && end - point == 2 && point[0] == '.' && point[1] >= '0' && point[1] <= '9';
  if (!written || major < 1 || major > 99) {
    throw Error("AUGUR_GPU=" + name, "names no compute capability",
                "write one as 8.0, or leave it unset for that of the GPU");
  }
  return 10 * major + (point[1] - '0');
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
