// How a row of somebody's data set becomes a Prompt.
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

#include "base/error.h"
#include "data/prompt_set.h"

namespace augur {
namespace {

constexpr std::string_view kPlaceholder = "{prompt}";
// Where they are looked for unless a column is named: prompts, answers to compare with, and those to learn.
const std::initializer_list<std::string_view> kPromptColumns = {"prompt", "problem", "question"};
const std::initializer_list<std::string_view> kTruthColumns = {"reward_model.ground_truth", "label", "answer",
                                                               "solution"};
const std::initializer_list<std::string_view> kAnswerColumns = {"solution", "answer", "label", "completion"};

// The value at a column's name, or at a path with dots, or the null on the way to it; nullptr if there is
// none.
const Json* Follow(const Json& row, std::string_view name) {
  if (!row.is_object()) return nullptr;
  if (const auto found = row.find(name); found != row.end()) return &*found;
  const Json* value = &row;
  while (value->is_object()) {
    const size_t dot = name.find('.');
    const auto found = value->find(name.substr(0, dot));
    if (found == value->end()) return nullptr;
    value = &*found;
    if (dot == std::string_view::npos || value->is_null()) return value;
    name.remove_prefix(dot + 1);
  }
  return nullptr;
}

const Json* Find(const Json& row, std::string_view name) {
  const Json* value = Follow(row, name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

// The named column, or else the first of the usual ones that is present.
const Json* FindColumn(const Json& row, const std::string& named,
                       std::initializer_list<std::string_view> usual) {
  if (!named.empty()) return Find(row, named);
  for (const std::string_view name : usual) {
    if (const Json* value = Find(row, name)) return value;
  }
  return nullptr;
}

Error Missing(const Json& row, std::string_view what, const std::string& named,
              std::vector<std::string_view> usual, const std::string& where) {
  if (!named.empty()) usual = {named};
  std::vector<std::string> names;
  for (const auto& [name, value] : row.items()) names.push_back(name + (value.is_null() ? " (null)" : ""));
  const bool empty = std::ranges::any_of(usual, [&](std::string_view name) {
    const Json* value = Follow(row, name);
    return value != nullptr && value->is_null();
  });
  const std::string_view flag = what == "data source" ? "data-source" : what;
  const std::string sought = named.empty() ? "" : fmt::format(" in the column \"{}\"", named);
  return Error(where, fmt::format("no {}{}", what, sought),
               fmt::format("the row has {}; {}name the column of the {} (data.{}_key, or --{}-key)",
                           names.empty() ? "no columns" : fmt::format("{}", fmt::join(names, ", ")),
                           empty ? "fill it in or remove the row, or " : "", what,
                           flag == "data-source" ? "data_source" : flag, flag));
}

std::vector<ChatMessage> ReadMessages(const Json& value, const std::string& where) {
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string place = fmt::format("{}: message {} of the prompt", where, i + 1);
    if (const auto calls = value[i].find("tool_calls"); calls != value[i].end() && !calls->empty()) {
      throw Error(place, "has tool_calls, which are not rendered", "write them into its content");
    }
    messages.push_back({RequireString(value[i], "role", place), RequireString(value[i], "content", place)});
  }
  if (messages.empty()) throw Error(where, "the prompt has no messages", "remove the row or fill it");
  return messages;
}

std::string FillTemplate(const std::string& prompt_template, const std::string& text,
                         const std::string& where) {
  if (prompt_template.empty()) return text;
  if (!TakesPrompt(prompt_template)) {
    throw Error(where, "the prompt template does not contain {prompt}",
                "write {prompt} where the prompt goes");
  }
  return std::string(prompt_template).replace(prompt_template.find(kPlaceholder), kPlaceholder.size(), text);
}

// GSM8K as published ends a worked solution with "#### " and the answer, in which commas group digits.
Json FinalAnswer(const Json& answer) {
  constexpr std::string_view kMark = "\n#### ";
  if (!answer.is_string()) return answer;
  std::string text = answer.get<std::string>();
  const size_t mark = text.rfind(kMark);
  if (mark == std::string::npos) return answer;
  text.erase(0, mark + kMark.size());
  std::erase(text, ',');
  return text;
}

bool IsCountdown(const Json& row) {
  const Json* numbers = Find(row, "numbers");
  return numbers != nullptr && numbers->is_array() && Find(row, "target") != nullptr;
}

std::string CountdownText(const Json& row) {
  return fmt::format(
      "Using the numbers {}, write an expression that equals {}. You may use + - * / and parentheses, and "
      "must use each number exactly once. End with a line of the form \"Answer: expression\".",
      row["numbers"].dump(), row["target"].dump());
}

// What a verifier compares with: often the last line of a solution, or its number alone.
const Json* FindGroundTruth(const Json& row, const PromptColumns& columns) {
  return FindColumn(row, columns.answer, kTruthColumns);
}

bool IsAnswer(const ChatMessage& message) { return message.role == "assistant"; }

bool EndsWithAnswer(const Prompt& prompt) {
  return !prompt.messages.empty() && IsAnswer(prompt.messages.back());
}

// The assistant's message at the end of a conversation, taken off it.
std::string CutAnswer(const PromptColumns& columns, const std::string& where,
                      std::vector<ChatMessage>* messages) {
  if (!columns.cut_answer || messages->size() == 1) {
    throw Error(where, "the prompt ends with the assistant's message, which gives the answer away",
                messages->size() == 1 ? "add the message that it answers"
                                      : "cut it off with data.cut_answer=true, or --cut-answer");
  }
  std::string answer = std::move(messages->back().content);
  messages->pop_back();
  return answer;
}

// The answer that a message is, which is learned.
void LearnFrom(const Json& message, const std::string& where, Prompt* prompt) {
  prompt->ground_truth = RequireString(message, "content", where);
  const Json* reasoning = Find(message, "reasoning_content");
  if (reasoning == nullptr) return;
  if (!reasoning->is_string()) throw Error(where, "reasoning_content is not text", "write it as text");
  prompt->reasoning = reasoning->get<std::string>();
}

// An answer that is written as a conversation of its own, as TRL's "completion" may be.
const Json& OnlyAnswer(const Json& messages, const std::string& where) {
  const std::vector<ChatMessage> turns = ReadMessages(messages, where);
  if (turns.size() != 1 || !IsAnswer(turns[0])) {
    throw Error(where, "the answer is a list of messages, of which one answer is learned",
                "write one message of the role assistant, or its text");
  }
  return messages[0];
}

// What is learned word by word. A ground truth alone is no answer unless it is named as one.
const Json* FindWholeAnswer(const Json& row, const PromptColumns& columns, const std::string& where) {
  const Json* answer = FindColumn(row, columns.answer, kAnswerColumns);
  if (answer == nullptr && columns.answer.empty() && Find(row, "reward_model.ground_truth") != nullptr) {
    throw Error(where, "has a ground truth for a verifier (reward_model.ground_truth) and no answer to learn",
                "name the column of the answer with data.answer_key, this one if it is the answer");
  }
  return answer;
}

}  // namespace

bool TakesPrompt(std::string_view prompt_template) {
  return prompt_template.empty() || prompt_template.find(kPlaceholder) != std::string_view::npos;
}

Prompt PromptFromRow(const Json& row, const PromptColumns& columns, const std::string& where) {
  Prompt prompt;
  const Json* content = FindColumn(row, columns.prompt, kPromptColumns);
  // Data sets of puzzles may hold a conversation as well, which then is another's way to ask.
  if (content == nullptr && columns.prompt.empty() && (columns.whole_answers || !IsCountdown(row))) {
    content = Find(row, "messages");
  }
  const bool countdown = columns.prompt.empty() && content == nullptr && IsCountdown(row);
  if (content == nullptr && !countdown) {
    std::vector<std::string_view> usual = kPromptColumns;
    usual.insert(usual.end(), {"messages", "numbers", "target"});
    throw Missing(row, "prompt", columns.prompt, usual, where);
  }
  if (content != nullptr && content->is_array()) {
    prompt.messages = ReadMessages(*content, where);
  } else if (content != nullptr && !content->is_string()) {
    throw Error(where, fmt::format("the prompt is {}", KindOf(*content)),
                "write it as text or as a list of messages {\"role\", \"content\"}");
  } else {
    const std::string text = countdown ? CountdownText(row) : content->get<std::string>();
    if (text.empty()) throw Error(where, "the prompt is empty", "remove the row or fill it");
    prompt.text = FillTemplate(columns.prompt_template, text, where);
  }

  std::optional<std::string> cut;
  if (!columns.whole_answers && EndsWithAnswer(prompt)) cut = CutAnswer(columns, where, &prompt.messages);
  const Json* answer =
      columns.whole_answers ? FindWholeAnswer(row, columns, where) : FindGroundTruth(row, columns);
  if (answer != nullptr && columns.whole_answers && answer->is_array()) {
    LearnFrom(OnlyAnswer(*answer, where), where, &prompt);
  } else if (answer != nullptr) {
    prompt.ground_truth = columns.whole_answers ? *answer : FinalAnswer(*answer);
  } else if (columns.whole_answers && prompt.messages.size() > 1 && IsAnswer(prompt.messages.back())) {
    LearnFrom(content->back(), where, &prompt);  // a conversation ends with what is to be learned
    prompt.messages.pop_back();
  } else if (columns.answer.empty() && IsCountdown(row)) {
    prompt.ground_truth = {{"numbers", row["numbers"]}, {"target", row["target"]}};
  } else if (cut) {
    prompt.ground_truth = FinalAnswer(*cut);
  } else if (columns.answer_required) {
    std::vector<std::string_view> usual = columns.whole_answers ? kAnswerColumns : kTruthColumns;
    usual.insert(usual.end(), {"messages", "numbers", "target"});
    throw Missing(row, "answer", columns.answer, usual, where);
  }

  if (const Json* source = FindColumn(row, columns.data_source, {"data_source"})) {
    if (!source->is_string()) throw Error(where, "the data source is not text", "write it as text");
    prompt.data_source = source->get<std::string>();
  } else if (!columns.data_source.empty()) {
    throw Missing(row, "data source", columns.data_source, {}, where);
  }
  if (const Json* extra = Find(row, "extra_info")) prompt.extra_info = *extra;
  return prompt;
}

}  // namespace augur
