// Prompts as the run needs them: read, put through the chat format, tokenized.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/prompt_length.h"
#include "data/prompt_set.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace augur {

// What turns text into a model's tokens and back.
struct ModelText {
  Tokenizer tokenizer;
  ChatFormat chat;
  std::vector<int32_t> end_tokens;  // any of them ends a response
  int32_t eos_token = 0;            // the one that ends plain text
  int32_t turn_end = 0;  // the one that ends an assistant's turn; eos_token where the format has none

  // Of the model's directory, or of a model of the hub; the chat format as the section says. Throws Error
  // where a file is missing or damaged, where no token ends a response, and where data.chat asks for a chat
  // format that the model does not have. Warns of a tokenizer far smaller than the model's head.
  static ModelText FromDirectory(const std::filesystem::path& model, const DataSection& data);

  // How many token ids there are; rows of the model's head behind them are padding.
  int64_t vocab_size() const { return static_cast<int64_t>(tokenizer.vocab_size()); }

  // The response as the verifier sees it: without special tokens.
  std::string ResponseText(std::span<const int32_t> tokens) const { return tokenizer.Decode(tokens, true); }
};

// Whether the prompt goes through the chat format.
bool IsChat(const DataSection& data, const Prompt& prompt);

// Says on standard error which chat format the prompts go through, and warns where the model has none and a
// conversation needs one.
void TellChatFormat(const std::string& model, const ModelText& text, const DataSection& data,
                    std::span<const Prompt> prompts);

// The prompt's tokens, ready for the model to continue.
std::vector<int32_t> EncodePrompt(const ModelText& text, const DataSection& data, const Prompt& prompt);

// Which columns the section names.
PromptColumns ColumnsOf(const DataSection& data);

// The section `data` with no prompt allowed that fills the model's context.
DataSection DataWithinContext(const RlConfig& config);

struct LoadOptions {
  int64_t limit = 0;           // take that many of each file's beginning; 0: all
  bool keep_bad_rows = false;  // see PromptColumns; they have no tokens
  bool whole_answers = false;  // see PromptColumns
  bool keep_columns = false;   // see PromptColumns
  // Otherwise a row may have none, unless data.answer_key names its column.
  bool answer_required = true;
};

// All prompts of the files, tokenized. Says on standard error how many were left out or cut for their length.
TokenizedPrompts LoadPrompts(const ModelText& text, const DataSection& data,
                             const std::vector<std::string>& files, const LoadOptions& options = {});

}  // namespace augur
