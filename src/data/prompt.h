// One task for the model, as read from a data set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/chat_format.h"

namespace augur {

struct Prompt {
  // Place in the set, from 0, in the order of the files and their rows.
  size_t index = 0;
  // Groups evaluation figures. The row's, or else the file's name without its extension.
  std::string data_source;
  // Either a conversation, for a chat format to render, or plain text; the other is empty.
  std::vector<ChatMessage> messages;
  std::string text;
  // What the verifier compares with: text, a number, or an object.
  Json ground_truth;
  // Of an answer that is to be learned: the reasoning that its message holds apart from it.
  std::string reasoning = {};
  // The row's extra_info, untouched; null if it has none.
  Json extra_info;
  // The whole row, where PromptColumns::keep_columns asked for it; otherwise null.
  Json columns;
  // Where the row stands: the file, and its line (JSONL) or row (Parquet), from 1.
  std::string file;
  size_t line = 0;
  // An object of the row holds a key twice, of which the last counts.
  bool repeats_key = false;
  // Why the row cannot be used, beginning with its place; empty where it can. See
  // PromptColumns::keep_bad_rows.
  std::string fault = {};

  std::string Where() const { return file + ":" + std::to_string(line); }
};

}  // namespace augur
