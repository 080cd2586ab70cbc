#include "data/prompt_set.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/stop_signals.h"
#include "data/jsonl.h"
#include "data/parquet.h"
#include "data/task.h"

namespace augur {
namespace {

// `name` is the data source of rows that name none.
void AppendFile(const std::filesystem::path& path, const std::string& name, const PromptColumns& columns,
                std::vector<Prompt>* prompts) {
  const size_t before = prompts->size();
  const auto append = [&](const Json& row, size_t line) {
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
    if (prompt.data_source.empty()) prompt.data_source = name;
    prompts->push_back(std::move(prompt));
  };
  const MappedFile file(path);
  RefuseLfsPointer(file.text(), path);
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

}  // namespace augur
