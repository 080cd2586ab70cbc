// `augur doctor`: what this machine and this build have, and how well rollout and trainer agree on a model.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <torch/version.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/doctor_parity.h"
#include "cli/flag_checks.h"
#include "kernels/simd/isa.h"
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

void ShowMachine() {
  struct sysinfo memory{};
  sysinfo(&memory);
  const std::string model = CpuInfo("model name");
  fmt::print("machine\n");
  fmt::print("  cpu          {} cores{}\n", sysconf(_SC_NPROCESSORS_ONLN), model.empty() ? "" : ", " + model);
  fmt::print("  instructions {}; kernels use {} (AUGUR_CPU)\n", MatrixInstructions(), IsaName(CurrentIsa()));
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
  CLI::App* command = app.add_subcommand(
      "doctor", "Show what this machine has; with a MODEL, how far rollout and trainer differ");
  const auto options = std::make_shared<ParityOptions>();
  AddEngineFlags(command, &options->engine);
  command->get_option("MODEL")->required(false);
  command->add_option("--tokens-input", options->tokens_input,
                      "Prompts as {\"tokens\":[...]} lines of a file instead of random ones");
  command->add_option("--prompts", options->prompts, "Random prompts")
      ->capture_default_str()
      ->check(AtLeast(1));
  command->add_option("--max-tokens", options->tokens, "Tokens sampled after each")
      ->capture_default_str()
      ->check(AtLeast(1));
  command->add_option("--seed", options->seed, "Of prompts and draws")->capture_default_str()->check(Seed());
  command->add_flag("--json", options->json, "One JSON line a precision, without the machine");
  command->footer(
      "With a MODEL: samples at temperature 1, rescores the tokens with the trainer's forward and the same "
      "weights, and\n"
      "shows the distribution of log-prob differences and of KL(rollout || trainer) over the whole "
      "vocabulary, for fp32,\n"
      "bf16, fp8_rollout (the rollout alone in fp8), fp8 (both) and bf16 with fp8 keys and values, or for "
      "the "
      "one\n"
      "--precision names. In fp32 on the CPU a difference above 1e-4 is a fault: exit code 1.");
  command->callback([options] {
    if (!options->json) ShowMachine();
    if (!options->engine.model.empty()) ShowParity(*options);
  });
}

}  // namespace augur
