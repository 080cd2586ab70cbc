#include "rollout/prompts.h"

#include <algorithm>

#include "base/error.h"
#include "data/prompt_set.h"
#include "model/load.h"

namespace augur {
namespace {

RenderOptions MakeRenderOptions(const DataSection& data) {
  RenderOptions options{.add_generation_prompt = true, .date = data.date};
  if (data.thinking != Thinking::kDefault) options.thinking = data.thinking == Thinking::kOn;
  return options;
}

}  // namespace

ModelText ModelText::FromDirectory(const std::filesystem::path& directory, const DataSection& data) {
  Tokenizer tokenizer = Tokenizer::FromDirectory(directory);
  ChatFormat chat = data.chat_format == "auto" ? ChatFormat::FromDirectory(directory)
                                               : ChatFormat::Named(data.chat_format, "data.chat_format");
  std::vector<int32_t> end_tokens = ReadEosIds(directory, tokenizer);
  if (end_tokens.empty()) {
    throw Error(directory.string(), "names no end-of-sequence token",
                "set eos_token_id in generation_config.json");
  }
  return {std::move(tokenizer), std::move(chat), std::move(end_tokens)};
}

std::vector<int32_t> EncodePrompt(const ModelText& text, const DataSection& data, const Prompt& prompt) {
  if (!prompt.messages.empty()) {
    return text.tokenizer.Encode(text.chat.Render(prompt.messages, MakeRenderOptions(data)));
  }
  if (data.chat == ChatUse::kAlways) {
    const ChatMessage message{"user", prompt.text};
    return text.tokenizer.Encode(text.chat.Render({&message, 1}, MakeRenderOptions(data)));
  }
  return text.tokenizer.EncodeWithSpecialTokens(prompt.text);
}

DataSection DataWithinContext(const RlConfig& config) {
  DataSection data = config.data;
  const int64_t context = ReadModelConfig(config.model.path).max_positions;
  if (context > 1) data.max_prompt_tokens = std::min(data.max_prompt_tokens, context - 1);
  return data;
}

TokenizedPrompts LoadPrompts(const ModelText& text, const DataSection& data,
                             const std::vector<std::string>& files, int64_t limit, bool keep_bad_rows) {
  PromptColumns columns{data.prompt_key, data.answer_key, data.data_source_key, data.prompt_template};
  columns.keep_bad_rows = keep_bad_rows;
  std::vector<Prompt> prompts;
  for (const std::string& file : files) {
    const std::filesystem::path path = file;
    std::vector<Prompt> read = ReadPrompts({&path, 1}, columns);
    if (limit > 0 && read.size() > static_cast<size_t>(limit)) read.resize(static_cast<size_t>(limit));
    for (Prompt& prompt : read) {
      prompt.index = prompts.size();
      prompts.push_back(std::move(prompt));
    }
  }
  return TokenizePrompts(
      std::move(prompts),
      [&](const Prompt& prompt) {
        return prompt.fault.empty() ? EncodePrompt(text, data, prompt) : std::vector<int32_t>();
      },
      static_cast<size_t>(data.max_prompt_tokens), data.overlong);
}

}  // namespace augur
