#include "ops/out_of_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <string>

namespace augur {
namespace {

// torch has no type for the CPU's, loses the GPU's on some ways, and passes on what CUDA and its libraries
// say where they ask for memory themselves.
constexpr std::string_view kSaidOfFullMemory[] = {
    "DefaultCPUAllocator",        "CUDA out of memory",        "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "DEVICE_ALLOCATION_FAILED",
};
constexpr std::string_view kTriedToAllocate = "ried to allocate ";

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool IsGpu(const std::exception& fault) {
  const std::string_view what = fault.what();
  return dynamic_cast<const c10::OutOfMemoryError*>(&fault) != nullptr || Contains(what, "CUDA") ||
         Contains(what, "GPU") || Contains(what, "CUBLAS") || Contains(what, "CUDNN");
}

// " (2.00 GiB were wanted)", from torch's words: a number of bytes on the CPU, text on a GPU.
std::string Wanted(std::string_view what) {
  const size_t at = what.find(kTriedToAllocate);
  if (at == std::string_view::npos) return "";
  what.remove_prefix(at + kTriedToAllocate.size());
  uint64_t bytes = 0;
  const auto [end, fault] = std::from_chars(what.data(), what.data() + what.size(), bytes);
  if (fault == std::errc() && std::string_view(end, what.data() + what.size()).starts_with(" bytes")) {
    return fmt::format(" ({:.2f} GiB were wanted)", static_cast<double>(bytes) / (1 << 30));
  }
  const size_t unit = what.find("iB");
  return unit < 16 ? fmt::format(" ({} were wanted)", what.substr(0, unit + 2)) : "";
}

}  // namespace

bool IsOutOfMemory(const std::exception& fault) {
  const std::string_view what = fault.what();
  if (dynamic_cast<const std::bad_alloc*>(&fault) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&fault) != nullptr) return true;
  if (dynamic_cast<const MemoryError*>(&fault) != nullptr) return true;
  return std::ranges::any_of(kSaidOfFullMemory, [&](std::string_view said) { return Contains(what, said); });
}

Error OutOfMemory(std::string_view where, const std::exception& fault, std::string_view remedy) {
  return Error(where,
               fmt::format("the memory of {} is full{}", IsGpu(fault) ? "the GPU" : "this machine",
                           Wanted(fault.what())),
               remedy);
}

}  // namespace augur
