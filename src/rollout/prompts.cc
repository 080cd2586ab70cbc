#include "rollout/prompts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/hub.h"
#include "base/tell.h"
#include "model/adapter_files.h"
#include "model/load.h"

namespace augur {
namespace {

RenderOptions MakeRenderOptions(const DataSection& data) {
  RenderOptions options{.add_generation_prompt = true, .date = data.date};
  if (data.thinking != Thinking::kDefault) options.thinking = data.thinking == Thinking::kOn;
  return options;
}

// Rows of the head behind the tokenizer are padding, of which published models have a few.
void WarnOfSmallTokenizer(const std::filesystem::path& directory, const Tokenizer& tokenizer) {
  if (!std::filesystem::exists(directory / "config.json")) return;
  const auto tokens = static_cast<int64_t>(tokenizer.vocab_size());
  const int64_t rows = ReadModelConfig(directory).vocab_size;
  if (4 * tokens >= 3 * rows) return;
  Tell(
      "augur: warning: {}: the tokenizer has {} tokens, the model's head {} rows, of which the rest is "
      "never sampled; check that tokenizer.json is this model's\n",
      directory.string(), tokens, rows);
}

void WarnOfLongPrompts(const TokenizedPrompts& prompts, const std::vector<std::string>& files, size_t most) {
  const size_t all = prompts.prompts.size() + prompts.dropped;
  for (const auto& [count, what] :
       {std::pair(prompts.dropped, "left out"), {prompts.truncated, "cut at the left"}}) {
    if (count == 0) continue;
    Tell(
        "augur: warning: {}: {} of {} prompts {}, being longer than {} tokens; data.max_prompt_tokens "
        "and the model's context allow no more\n",
        fmt::join(files, ", "), count, all, what, most);
  }
}

}  // namespace

ModelText ModelText::FromDirectory(const std::filesystem::path& model, const DataSection& data) {
  const std::filesystem::path directory = BaseDirectory(ModelDirectory(model.string()));
  Tokenizer tokenizer = Tokenizer::FromDirectory(directory);
  ChatFormat chat = data.chat_format == "auto" ? ChatFormat::FromDirectory(directory)
                                               : ChatFormat::Named(data.chat_format, "data.chat_format");
  std::vector<int32_t> end_tokens = ReadEosIds(directory, tokenizer);
  if (end_tokens.empty()) {
    throw Error(directory.string(), "names no end-of-sequence token",
                "set eos_token_id in generation_config.json");
  }
  if (data.chat == ChatUse::kAlways && data.chat_format == "auto" && chat.name() == "raw") {
    throw Error(directory.string(), "has no chat format, and --chat (data.chat: always) asks for one",
                "name it with --chat-format (data.chat_format), e.g. chatml, or leave --chat out");
  }
  WarnOfSmallTokenizer(directory, tokenizer);
  const int32_t eos_token = *ReadEosToken(directory, tokenizer);
  const std::string_view end = chat.end_token();
  const int32_t turn_end = end.empty() ? eos_token : tokenizer.Find(end).value_or(eos_token);
  return {std::move(tokenizer), std::move(chat), std::move(end_tokens), eos_token, turn_end};
}

bool IsChat(const DataSection& data, const Prompt& prompt) {
  return !prompt.messages.empty() || data.chat == ChatUse::kAlways;
}

void TellChatFormat(const std::string& model, const ModelText& text, const DataSection& data,
                    std::span<const Prompt> prompts) {
  const auto chats =
      std::ranges::count_if(prompts, [&](const Prompt& prompt) { return IsChat(data, prompt); });
  if (chats == 0) {
    Tell("chat format: none, prompts are plain text\n");
    return;
  }
  const bool of_model = data.chat_format == "auto";
  const std::string some = static_cast<size_t>(chats) == prompts.size()
                               ? ""
                               : fmt::format("; {} of {} prompts are plain text",
                                             prompts.size() - static_cast<size_t>(chats), prompts.size());
  Tell("chat format: {}{}{}\n", text.chat.name(), of_model ? ", the model's" : "", some);
  if (!of_model || text.chat.name() != "raw") return;
  Tell(
      "augur: warning: {}: has no chat template, so conversations are written as their text alone (raw); "
      "choose a format by name with data.chat_format (--chat-format), e.g. chatml, or raw if that is meant\n",
      model);
}

std::vector<int32_t> EncodePrompt(const ModelText& text, const DataSection& data, const Prompt& prompt) {
  if (!prompt.messages.empty()) {
    return text.tokenizer.Encode(text.chat.Render(prompt.messages, MakeRenderOptions(data)));
  }
  if (IsChat(data, prompt)) {
    const ChatMessage message{"user", prompt.text};
    return text.tokenizer.Encode(text.chat.Render({&message, 1}, MakeRenderOptions(data)));
  }
  return text.tokenizer.EncodeWithSpecialTokens(prompt.text);
}

PromptColumns ColumnsOf(const DataSection& data) {
  PromptColumns columns{data.prompt_key, data.answer_key, data.data_source_key, data.prompt_template};
  columns.cut_answer = data.cut_answer;
  return columns;
}

DataSection DataWithinContext(const RlConfig& config) {
  DataSection data = config.data;
  const int64_t context = ReadModelConfig(config.model.path).max_positions;
  if (context > 1) data.max_prompt_tokens = std::min(data.max_prompt_tokens, context - 1);
  return data;
}

TokenizedPrompts LoadPrompts(const ModelText& text, const DataSection& data,
                             const std::vector<std::string>& files, const LoadOptions& options) {
  PromptColumns columns = ColumnsOf(data);
  columns.keep_bad_rows = options.keep_bad_rows;
  columns.whole_answers = options.whole_answers;
  columns.keep_columns = options.keep_columns;
  columns.answer_required = options.answer_required || !data.answer_key.empty();
  const auto limit = static_cast<size_t>(options.limit);
  std::vector<Prompt> prompts;
  for (const std::string& file : files) {
    const std::filesystem::path path = file;
    std::vector<Prompt> read = ReadPrompts({&path, 1}, columns);
    if (limit > 0 && read.size() > limit) read.resize(limit);
    for (Prompt& prompt : read) {
      prompt.index = prompts.size();
      prompts.push_back(std::move(prompt));
    }
  }
  for (const std::string& warning : OddRows(prompts, columns.answer_required)) {
    Tell("augur: warning: {}\n", warning);
  }
  const auto most = static_cast<size_t>(data.max_prompt_tokens);
  TokenizedPrompts tokenized = TokenizePrompts(
      std::move(prompts),
      [&](const Prompt& prompt) {
        if (!prompt.fault.empty()) return std::vector<int32_t>();
        return AtPlace(prompt.Where(), [&] { return EncodePrompt(text, data, prompt); });
      },
      most, data.overlong);
  WarnOfLongPrompts(tokenized, files, most);
  return tokenized;
}

}  // namespace augur
