#include "cli/same_on_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/checksum.h"
#include "base/hub.h"
#include "data/fingerprint.h"
#include "ops/parallel/ranks.h"
#include "ops/parallel/together.h"

namespace augur {
namespace {

// Name files, which may have other names on another machine; what they hold is compared.
constexpr std::string_view kFileFlags[] = {"--data", "--tokens-input", "--output", "--responses", "--reward"};

std::string FlagLines(const CLI::App& command) {
  std::string lines;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_lnames().empty() ? "" : "--" + option->get_lnames().front();
    if (name.empty() || std::ranges::find(kFileFlags, name) != std::end(kFileFlags)) continue;
    lines += fmt::format("{} {}\n", name, fmt::join(option->results(), " "));
  }
  return lines;
}

std::string ModelLines(const std::string& model) {
  const std::filesystem::path directory = ModelDirectory(model);
  std::vector<FileFingerprint> files = FingerprintText(directory);
  std::ranges::move(FingerprintWeights(directory), std::back_inserter(files));
  std::string lines;
  for (const FileFingerprint& file : files) {
    lines += fmt::format("{} ({} bytes, {})\n", std::filesystem::path(file.path).filename().string(),
                         file.size, file.checksum);
  }
  return lines;
}

}  // namespace

void ExpectSameOnRanks(const CLI::App& command, const std::string& model,
                       const std::vector<std::string>& inputs) {
  const Ranks ranks = Ranks::World();
  if (ranks.alone()) return;
  std::string mine;
  ranks.Together([&] {
    mine = fmt::format("{} prompts\n{}{}{}\n", inputs.size(), FlagLines(command), ModelLines(model),
                       fmt::join(inputs, "\n"));
  });
  ExpectSame(ranks, fmt::format("flags, model and prompts of augur {}", command.get_name()), mine,
             "give every rank the same; a process that is to answer its own prompts starts without "
             "torchrun and srun, or from Python without augur.join()");
}

std::string PromptLine(size_t place, const std::vector<int32_t>& tokens, const std::string& answer) {
  const uint64_t sum = Checksum(std::as_bytes(std::span(tokens)));
  const uint64_t answer_sum = Checksum(std::as_bytes(std::span(answer.data(), answer.size())));
  return fmt::format("prompt {}: {} tokens, {:016x} {:016x}", place + 1, tokens.size(), sum, answer_sum);
}

}  // namespace augur
