// Prompt sets from files.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/prompt.h"

namespace augur {

// Which columns of a row hold what. An empty name means the usual ones, tried in this order:
//   prompt       prompt (verl, slime, TRL), problem, question, messages
//   answer       reward_model.ground_truth (verl), label (slime), answer, solution (TRL)
//   data_source  data_source (verl), else the file's name without its extension, or the data set's
// A dot in a name steps into an object. A row {"numbers", "target"} without a prompt is a countdown puzzle.
struct PromptColumns {
  std::string prompt = {};
  std::string answer = {};
  std::string data_source = {};
  // Where a prompt is plain text, the text around it, with {prompt} in its place; e.g. an instruction to end
  // with "Answer:". Empty: nothing around it.
  std::string prompt_template = {};
  bool answer_required = true;  // otherwise a row may have none
  // Of a conversation that ends with an assistant's message, cut it, and take it as the answer where there is
  // no other. Otherwise such a prompt, which holds its answer, is an error.
  bool cut_answer = false;
  // Take answers as they stand, from solution, answer or label; otherwise of a GSM8K solution only the number
  // after its last "####".
  bool whole_answers = false;
  // Keep each row, for reward functions that read its columns.
  bool keep_columns = false;
  // A row of JSON that holds no usable prompt becomes a Prompt with its fault, as long as the file has
  // others; otherwise it is thrown.
  bool keep_bad_rows = false;
};

// Whether {prompt} stands in the template, or it is empty.
bool TakesPrompt(std::string_view prompt_template);

// The prompt a row describes; index, file and line are left to the caller. Throws Error at `where` when
// something is missing or of the wrong type.
Prompt PromptFromRow(const Json& row, const PromptColumns& columns, const std::string& where);

// All prompts of JSONL and Parquet files (told apart by their first bytes), of data sets of the hub
// (base/hub.h) and of tasks (data/task.h), in order. Throws Error at "file:line" for the first row that
// cannot be read, and for a file without any.
std::vector<Prompt> ReadPrompts(std::span<const std::filesystem::path> files, const PromptColumns& columns);

// What is odd about prompts that can be used all the same: keys given twice, empty answers where they are
// needed, roles that chat formats do not know. A line for each kind: the first such row, and how many there
// are.
std::vector<std::string> OddRows(std::span<const Prompt> prompts, bool need_answers);

}  // namespace augur
