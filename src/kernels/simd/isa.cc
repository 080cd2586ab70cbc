#include "kernels/simd/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/error.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace augur {
namespace {

constexpr std::pair<Isa, std::string_view> kNames[] = {
    {Isa::kBaseline, "baseline"},     {Isa::kAvx2, "avx2"}, {Isa::kAvx512, "avx512"},
    {Isa::kAvx512Bf16, "avx512bf16"}, {Isa::kAmx, "amx"},   {Isa::kBfmmla, "bfmmla"},
};

#if defined(__x86_64__) && defined(__linux__)

bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// Tiles belong to a process only after it has asked the system for them.
bool HasAmx() {
  constexpr unsigned kTile = 1u << 24, kBf16 = 1u << 22;  // of CPUID 7's edx
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kTile) == 0 || (edx & kBf16) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::vector<Isa> Find() {
  std::vector<Isa> found = {Isa::kBaseline};
  if (!HasAvx2()) return found;
  found.push_back(Isa::kAvx2);
  if (!HasAvx512()) return found;
  found.push_back(Isa::kAvx512);
  if (!__builtin_cpu_supports("avx512bf16")) return found;
  found.push_back(Isa::kAvx512Bf16);
  if (HasAmx()) found.push_back(Isa::kAmx);
  return found;
}

#elif defined(__aarch64__) && defined(__linux__)

std::vector<Isa> Find() {
  if ((getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0) return {Isa::kBaseline, Isa::kBfmmla};
  return {Isa::kBaseline};
}

#else

std::vector<Isa> Find() { return {Isa::kBaseline}; }

#endif

std::atomic<Isa>& Current() {
  static std::atomic<Isa> current = MachineIsas().back();
  return current;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  for (const auto& [known, name] : kNames) {
    if (known == isa) return name;
  }
  return "";
}

const std::vector<Isa>& MachineIsas() {
  static const std::vector<Isa> isas = Find();
  return isas;
}

Isa IsaOfEnvironment() {
  const char* value = std::getenv("AUGUR_CPU");
  const std::string_view name = value == nullptr ? "" : value;
  if (name.empty()) return MachineIsas().back();
  std::string here;
  for (const Isa isa : MachineIsas()) {
    if (IsaName(isa) == name) return isa;
    here += (here.empty() ? "" : ", ") + std::string(IsaName(isa));
  }
  const bool known = std::any_of(std::begin(kNames), std::end(kNames),
                                 [&](const auto& pair) { return pair.second == name; });
  throw Error("AUGUR_CPU=" + std::string(name),
              known ? "this machine lacks these instructions" : "names no instruction set",
              "take one of " + here + ", or leave it unset for the largest");
}

Isa CurrentIsa() { return Current().load(std::memory_order_relaxed); }
void SetIsa(Isa isa) { Current().store(isa, std::memory_order_relaxed); }

}  // namespace augur
