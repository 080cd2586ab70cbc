#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/tell.h"
#include "cli/commands.h"
#include "cli/flag_checks.h"
#include "data/prompt_order.h"
#include "data/prompt_set.h"
#include "reward/verifier.h"

namespace augur {
namespace {

struct PromptsFlags {
  std::vector<std::filesystem::path> files;
  PromptColumns columns;
  std::optional<size_t> limit;
  std::optional<uint64_t> shuffle;
  uint64_t start = 0;
  std::string verifier = "auto";
  bool warn = false;
};

Json ToJson(const Prompt& prompt, const std::string& verifier) {
  Json object = {{"index", prompt.index},
                 {"data_source", prompt.data_source},
                 {"prompt", prompt.text},
                 {"ground_truth", prompt.ground_truth},
                 {"verifier", VerifierFor(verifier, prompt, "--verifier").name},
                 {"extra_info", prompt.extra_info},
                 {"file", prompt.file},
                 {"line", prompt.line}};
  if (prompt.messages.empty()) return object;
  object["prompt"] = Json::array();
  for (const ChatMessage& message : prompt.messages) {
    object["prompt"].push_back({{"role", message.role}, {"content", message.content}});
  }
  return object;
}

// What training needs of the set beyond its rows.
void TellKinds(const std::vector<Prompt>& prompts) {
  const auto has_none = [](const Prompt& prompt) { return prompt.ground_truth.is_null(); };
  if (const auto first = std::ranges::find_if(prompts, has_none); first != prompts.end()) {
    Tell("augur: warning: {}: no answer; {} of {} rows have none, and only reward.python can score them\n",
         first->Where(), std::ranges::count_if(prompts, has_none), prompts.size());
  }
  const auto chats =
      std::ranges::count_if(prompts, [](const Prompt& prompt) { return !prompt.messages.empty(); });
  if (chats > 0) {
    Tell("chat format: the model's, or the one of data.chat_format, for {} of {} prompts\n", chats,
         prompts.size());
  }
}

void ShowPrompts(const PromptsFlags& options) {
  PromptColumns columns = options.columns;
  columns.answer_required = options.warn || !columns.answer.empty();
  const std::vector<Prompt> prompts = ReadPrompts(options.files, columns);
  for (const std::string& warning : OddRows(prompts, /*need_answers=*/true)) {
    Tell("augur: warning: {}\n", warning);
  }
  TellKinds(prompts);
  if (options.warn) {
    for (const std::string& warning : UnmatchableWarnings(options.verifier, prompts, "--verifier")) {
      Tell("augur: warning: {}\n", warning);
    }
  }
  PromptOrder order(prompts.size(), options.shuffle.value_or(0), options.shuffle.has_value());
  for (size_t i = 0; i < options.limit.value_or(prompts.size()); ++i) {
    fmt::print("{}\n", ForStdout(ToJson(prompts[order.At(options.start + i)], options.verifier).dump()));
  }
}

}  // namespace

void AddPromptsCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("prompts", "Show prompt sets (JSONL, Parquet) as training will read them");
  const auto options = std::make_shared<PromptsFlags>();
  command->add_option("FILE", options->files, "JSONL or Parquet files")->required();
  command->add_option("--limit", options->limit, "how many to show (default: one epoch)")->check(AtLeast(0));
  command->add_option("--prompt-key", options->columns.prompt,
                      "column of the prompt (default: prompt, problem, question or messages)");
  command->add_option("--answer-key", options->columns.answer,
                      "column of the answer (default: reward_model.ground_truth, label, answer or solution)");
  command->add_flag("--cut-answer", options->columns.cut_answer,
                    "cut the assistant's message off conversations that end with one");
  command->add_option("--data-source-key", options->columns.data_source,
                      "column of the data source (default: data_source, else the file's name)");
  command->add_option("--template", options->columns.prompt_template,
                      "text around prompts that are plain text, with {prompt} in their place");
  command->add_option("--shuffle", options->shuffle, "show them in the shuffled order of this seed")
      ->check(Seed());
  command->add_option("--start", options->start, "position to begin at; epochs follow one another")
      ->check(AtLeast(0));
  const CLI::Option* verifier = command->add_option("--verifier", options->verifier,
                                                    "warn of answers that cannot match themselves under this "
                                                    "verifier (augur verify), or under the one that "
                                                    "auto, as in training and evaluation, chooses");
  command->footer(
      "Writes one JSON object a line: index, data_source, prompt, ground_truth, verifier, extra_info, file, "
      "line.");
  command->callback([options, verifier] {
    options->warn = verifier->count() > 0;
    ShowPrompts(*options);
  });
}

}  // namespace augur
