// `augur doctor`: what this machine and this build have.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <torch/version.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "cli/commands.h"
#include "ops/device.h"

namespace augur {
namespace {

// The first value of a key in /proc/cpuinfo, or "".
std::string CpuInfo(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && line.starts_with(key))
      return line.substr(std::min(colon + 2, line.size()));
  }
  return "";
}

std::string MatrixInstructions() {
  const std::string flags = " " + CpuInfo("Features") + CpuInfo("flags") + " ";
  std::string found;
  for (const char* name : {"bf16", "i8mm", "sve", "avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (flags.find(fmt::format(" {} ", name)) != std::string::npos)
      found += std::string(found.empty() ? "" : ", ") + name;
  }
  return found.empty() ? "none of note" : found;
}

double Gib(double bytes) { return bytes / (1 << 30); }

void Run() {
  struct sysinfo memory{};
  sysinfo(&memory);
  const std::string model = CpuInfo("model name");
  fmt::print("machine\n");
  fmt::print("  cpu          {} cores{}\n", sysconf(_SC_NPROCESSORS_ONLN), model.empty() ? "" : ", " + model);
  fmt::print("  instructions {}\n", MatrixInstructions());
  fmt::print("  memory       {:.1f} GiB, {:.1f} free\n",
             Gib(static_cast<double>(memory.totalram) * memory.mem_unit),
             Gib(static_cast<double>(memory.freeram) * memory.mem_unit));
  fmt::print("  gpu          {}\n", GpuDescription());
  fmt::print("build\n");
  fmt::print("  torch        {}, {} threads\n", TORCH_VERSION, at::get_num_threads());
  fmt::print("  cuda kernels {}\n", BuiltWithCuda() ? "compiled" : "not compiled (no nvcc when configured)");
}

}  // namespace

void AddDoctorCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "Show what this machine and this build have");
  command->callback(Run);
}

}  // namespace augur
