#include "cli/generate_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/tell.h"

namespace augur {
namespace {

std::vector<int32_t> TokensOfLine(const std::string& line, const std::string& where) {
  const Json object = ParseJson(line, where);
  const Json& list = RequireKey(object, "tokens", where);
  if (!list.is_array()) throw Error(where, "\"tokens\" is not a list", "write {\"tokens\":[1,2,3]}");
  std::vector<int32_t> tokens;
  tokens.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<double>() < INT32_MIN || id.get<double>() > INT32_MAX) {
      throw Error(where, fmt::format("\"tokens\" holds {}, which is no token id", id.dump()),
                  "give whole numbers");
    }
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

// Errors of `tokens` begin with `where`.
template <typename Tokens>
void AddOrFault(GenerateInput* input, const std::string& where, const Tokens& tokens) {
  try {
    input->Add(where, tokens());
  } catch (const Error& error) {
    input->Add(where, {}, error.what());
  }
}

void AddPrompt(GenerateInput* input, const std::string& where, const Prompt& prompt, const ModelText& text,
               const DataSection& data) {
  const auto encode = [&] { return EncodePrompt(text, data, prompt); };
  AddOrFault(input, where, [&] { return AtPlace(where, encode); });
}

GenerateInput ReadTokenLines(std::istream& in) {
  GenerateInput input;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("line {}", number);
    AddOrFault(&input, where, [&] { return TokensOfLine(line, where); });
  }
  return input;
}

}  // namespace

void GenerateInput::Add(std::string where, std::vector<int32_t> tokens, std::string fault) {
  requests.push_back({requests.size(), std::move(tokens), std::move(where)});
  faults.push_back(std::move(fault));
}

GenerateInput TokensOfText(const std::string& text) {
  std::istringstream in(text);
  return ReadTokenLines(in);
}

GenerateInput ReadTokenLines(const std::string& file) {
  if (std::filesystem::is_directory(file)) throw Error(file, "is a directory", "name a file");
  std::ifstream in(file);
  if (!in) throw Error(file, "cannot be opened", "check the path");
  return ReadTokenLines(in);
}

GenerateInput ReadTextPrompts(const std::vector<std::string>& texts, const std::vector<std::string>& files,
                              const std::string& model, const ModelText& text, const DataSection& data) {
  GenerateInput input;
  if (files.empty() && data.chat != ChatUse::kAlways &&
      (data.chat_format != DataSection().chat_format || data.thinking != Thinking::kDefault)) {
    throw Error(data.thinking != Thinking::kDefault ? "--thinking" : "--chat-format",
                "does nothing to a prompt that is plain text", "add --chat");
  }
  std::vector<Prompt> prompts(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) prompts[i].text = texts[i];
  if (!files.empty()) {
    const std::vector<std::filesystem::path> paths(files.begin(), files.end());
    PromptColumns columns = ColumnsOf(data);
    columns.answer_required = false;
    columns.keep_bad_rows = true;
    std::ranges::move(ReadPrompts(paths, columns), std::back_inserter(prompts));
  }
  for (const std::string& warning : OddRows(prompts, /*need_answers=*/false)) {
    Tell("augur: warning: {}\n", warning);
  }
  if (std::ranges::any_of(prompts, [&](const Prompt& prompt) { return IsChat(data, prompt); })) {
    TellChatFormat(model, text, data, prompts);
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Prompt& prompt = prompts[i];
    const std::string where = i < texts.size() ? fmt::format("prompt {}", i + 1) : prompt.Where();
    if (prompt.fault.empty()) {
      AddPrompt(&input, where, prompt, text, data);
    } else {
      input.Add(where, {}, prompt.fault);
    }
  }
  return input;
}

}  // namespace augur
