// augur export: a Hugging Face directory from a run or a checkpoint.
#include "train/checkpoint/export.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/tell.h"
#include "cli/commands.h"

namespace augur {
namespace {

struct ExportFlags {
  std::string from, out, dtype = "auto";
  bool merge = false;
};

std::optional<DType> ParseExportType(const std::string& name) {
  constexpr std::string_view kNames[] = {"auto", "fp32", "bf16"};
  if (name == "auto") return std::nullopt;
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  throw UnknownName("--dtype", "type", name, kNames);
}

void RunExport(const ExportFlags& flags) {
  const std::optional<DType> dtype = ParseExportType(flags.dtype);
  const Export made = ExportCheckpoint(CheckpointOf(flags.from), flags.out, dtype, flags.merge);
  const char* kind = made.adapter ? "adapter" : made.dtype == DType::kF32 ? "fp32" : "bf16";
  fmt::print("{}: step {} of {}, {}\n", flags.out, made.step, made.checkpoint.string(), kind);
  if (made.has_tokenizer) return;
  Tell(
      "augur: warning: {}: without a tokenizer, since the model the run began with is gone; copy its "
      "tokenizer.json there\n",
      flags.out);
}

}  // namespace

void AddExportCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("export", "Make a Hugging Face directory of a run or a checkpoint");
  const auto flags = std::make_shared<ExportFlags>();
  command->add_option("FROM", flags->from, "A run's directory, or RUN/checkpoints/global_step_N")->required();
  command->add_option("OUT", flags->out, "The directory to write; must be new or empty")->required();
  command->add_flag(
      "--merge", flags->merge,
      "Add low-rank adapters to their base's weights: a plain model, where otherwise the adapter is written");
  command
      ->add_option("--dtype", flags->dtype,
                   "Store the weights as fp32 (the master weights), bf16, or auto: what the run computes in")
      ->capture_default_str();
  command->footer(
      "Of a run the newest checkpoint is taken. transformers and every command of augur read the result.\n\n"
      "Example: augur export runs/quickstart/checkpoints/global_step_60 models/step-60 --dtype bf16\n");
  command->callback([flags] { RunExport(*flags); });
}

}  // namespace augur
