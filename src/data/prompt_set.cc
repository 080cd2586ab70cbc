#include "data/prompt_set.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/stop_signals.h"
#include "base/utf8.h"
#include "data/jsonl.h"
#include "data/parquet.h"
#include "data/task.h"

namespace augur {
namespace {

void RefusePattern(const std::filesystem::path& path) {
  if (path.string().find_first_of("*?[") == std::string::npos || std::filesystem::exists(path)) return;
  throw Error(path.string(), "is a pattern, and files are named one by one", "list them: [a.jsonl, b.jsonl]");
}

// Usual forms of data sets that are not read, by their first bytes or the file's name.
void RefuseOtherFormat(std::string_view text, const std::filesystem::path& path) {
  const auto refuse = [&](std::string_view what, std::string_view remedy) {
    throw Error(path.string(), what, remedy);
  };
  if (text.starts_with("\x1f\x8b")) refuse("is compressed (gzip)", "decompress it with gunzip");
  if (text.starts_with("\x28\xb5\x2f\xfd")) refuse("is compressed (zstd)", "decompress it with unzstd");
  const std::string extension = path.extension();
  if (extension == ".csv" || extension == ".tsv") {
    refuse(fmt::format("is a table ({}), not JSON lines", extension.substr(1)),
           "convert it with pandas: read_csv(F).to_json(G, orient=\"records\", lines=True)");
  }
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (extension == ".json" && begin != std::string_view::npos && text[begin] == '[') {
    refuse("is a JSON array, not JSON lines",
           "write one object a line, with pandas: read_json(F).to_json(G, orient=\"records\", lines=True)");
  }
}

// `name` is the data source of rows that name none.
void AppendFile(const std::filesystem::path& path, const std::string& name, const PromptColumns& columns,
                std::vector<Prompt>* prompts) {
  const size_t before = prompts->size();
  const auto append = [&](const Json& row, size_t line, bool repeats_key = false) {
    CheckStop();
    Prompt prompt;
    try {
      prompt = PromptFromRow(row, columns, fmt::format("{}:{}", path.string(), line));
    } catch (const Error& error) {
      if (!columns.keep_bad_rows) throw;
      prompt.fault = error.what();
    }
    if (columns.keep_columns) prompt.columns = row;
    prompt.index = prompts->size();
    prompt.file = path.string();
    prompt.line = line;
    prompt.repeats_key = repeats_key;
    if (prompt.data_source.empty()) prompt.data_source = name;
    prompts->push_back(std::move(prompt));
  };
  RefusePattern(path);
  const MappedFile file(path);
  RefuseLfsPointer(file.text(), path);
  RefuseOtherFormat(file.text(), path);
  if (path.extension() == ".parquet" && !file.text().starts_with("PAR1")) {
    throw Error(path.string(), "is named .parquet and is none: it does not begin with PAR1",
                "fetch or write the file again, or name it .jsonl if it holds JSON lines");
  }
  if (file.text().starts_with("PAR1")) {
    ForEachParquetRow(path, append);
  } else {
    ForEachJsonLine(file.text(), path.string(), append);
  }
  if (prompts->size() == before) throw Error(path.string(), "holds no prompts", "check the path");
  const auto added = std::span(*prompts).subspan(before);
  if (std::ranges::all_of(added, [](const Prompt& prompt) { return !prompt.fault.empty(); })) {
    throw Error("", added.front().fault, "");
  }
}

constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool"};

// Of the first message whose role is none of kRoles.
const std::string* UnknownRole(const Prompt& prompt) {
  const auto unknown = std::ranges::find_if(prompt.messages, [](const ChatMessage& message) {
    return std::ranges::find(kRoles, message.role) == std::end(kRoles);
  });
  return unknown == prompt.messages.end() ? nullptr : &unknown->role;
}

bool HasEmptyAnswer(const Prompt& prompt) {
  const Json& answer = prompt.ground_truth;
  if (answer.is_structured()) return answer.empty();
  return answer.is_string() &&
         answer.get_ref<const std::string&>().find_first_not_of(" \t\r\n") == std::string::npos;
}

void AppendTask(const std::string& name, std::vector<Prompt>* prompts) {
  for (Prompt& prompt : MakeTask(name)) {
    prompt.index = prompts->size();
    prompts->push_back(std::move(prompt));
  }
}

}  // namespace

std::vector<Prompt> ReadPrompts(std::span<const std::filesystem::path> files, const PromptColumns& columns) {
  std::vector<Prompt> prompts;
  for (const auto& file : files) {
    if (IsTask(file.string())) {
      AppendTask(file.string(), &prompts);
    } else {
      const std::vector<std::string> parts = DataFiles(file.string());
      const bool local = parts.size() == 1 && parts[0] == file.string();
      for (const std::string& part : parts) {
        AppendFile(part, local ? file.stem().string() : HubDataName(file.string()), columns, &prompts);
      }
    }
  }
  return prompts;
}

std::vector<std::string> OddRows(std::span<const Prompt> prompts, bool need_answers) {
  std::vector<std::string> warnings;
  const auto count = [&](const auto& is_odd, const auto& what, std::string_view rows,
                         std::string_view remedy) {
    const auto first = std::ranges::find_if(prompts, is_odd);
    if (first == prompts.end()) return;
    warnings.push_back(fmt::format("{}: {}; {} of {} {}; {}", first->Where(), what(*first),
                                   std::ranges::count_if(prompts, is_odd), prompts.size(), rows, remedy));
  };
  count([](const Prompt& prompt) { return prompt.repeats_key; },
        [](const Prompt&) { return "a key is given twice, and the last counts"; }, "rows have such keys",
        "give each key once");
  if (need_answers) {
    count(
        HasEmptyAnswer, [](const Prompt&) { return "the answer is empty"; }, "answers are",
        "fill them in or remove the rows");
  }
  count([](const Prompt& prompt) { return UnknownRole(prompt) != nullptr; },
        [](const Prompt& prompt) {
          return fmt::format("the role {} is none of {}", Quoted(*UnknownRole(prompt)),
                             fmt::join(kRoles, ", "));
        },
        "prompts have such roles", "correct them");
  return warnings;
}

}  // namespace augur
