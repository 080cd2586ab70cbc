// augur convert: GGUF file to Hugging Face directory.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/names.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "formats/gguf_config.h"
#include "formats/gguf_convert.h"

namespace augur {
namespace {

// One line redrawn on a terminal; a line at every quarter elsewhere.
class ProgressLine {
 public:
  void operator()(uint64_t done, uint64_t total) {
    const int percent = static_cast<int>(done * 100 / total);
    if (percent < next_) return;
    next_ = percent + (terminal_ ? 1 : 25);
    Tell("{}writing weights: {:3d}%{}", terminal_ ? "\r" : "", percent,
         terminal_ && percent < 100 ? "" : "\n");
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  int next_ = 0;
};

struct ConvertFlags {
  std::string file, out, dtype = "fp32";
  ConvertOptions options;
};

DType ParseDType(const std::string& name) {
  constexpr std::string_view kNames[] = {"fp32", "bf16", "fp16"};
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  const auto found = std::ranges::find(kNames, name);
  if (found == std::end(kNames)) throw UnknownName("--dtype", "type", name, kNames);
  return kTypes[found - kNames];
}

void RunConvert(ConvertFlags& arguments) {
  arguments.options.dtype = ParseDType(arguments.dtype);
  arguments.options.progress = ProgressLine();
  const ConvertResult result = ConvertGguf(arguments.file, arguments.out, arguments.options);
  fmt::print("{}: {} tensors, {:.1f}M values as {}{}\n", arguments.out, result.tensors,
             static_cast<double>(result.values) / 1e6, DTypeName(arguments.options.dtype),
             result.has_tokenizer ? ", tokenizer" : "; no tokenizer");
}

}  // namespace

void AddConvertCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("convert", "Turn a GGUF file into a Hugging Face model directory");
  command->footer(
      fmt::format("Reads {} models stored as F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,\n"
                  "Q4_K, Q5_K or Q6_K, and writes config.json, generation_config.json, model.safetensors,\n"
                  "tokenizer.json and tokenizer_config.json. In fp32 the weights are bit for bit what the\n"
                  "Python package gguf dequantises.\n\n"
                  "Example: augur convert SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2-135m-instruct\n",
                  OneOf(GgufFamilies())));
  const auto arguments = std::make_shared<ConvertFlags>();
  ConvertOptions& options = arguments->options;
  command->add_option("FILE", arguments->file, "The GGUF file")->required();
  command->add_option("OUT", arguments->out, "The directory to write; must be new or empty")->required();
  command->add_option("--dtype", arguments->dtype, "Store the weights as fp32 (exact), bf16 or fp16")
      ->capture_default_str();
  command->add_option("--pre", options.pre,
                      "How text is split, where the file does not say: smollm, qwen2 or llama-bpe");
  command->add_flag("--no-tokenizer", options.no_tokenizer, "Write config and weights only");
  command->add_flag("--force", options.force, "Replace OUT if it is a model directory");
  command->callback([arguments] { RunConvert(*arguments); });
}

}  // namespace augur
