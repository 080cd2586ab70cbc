#include "train/step/sft_examples.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/stop_signals.h"
#include "base/tell.h"
#include "model/load.h"
#include "rollout/prompts.h"

namespace augur {
namespace {

std::string AnswerText(const Prompt& prompt) {
  if (prompt.ground_truth.is_string()) return prompt.ground_truth.get<std::string>();
  if (prompt.ground_truth.is_number()) return prompt.ground_truth.dump();
  throw Error(prompt.Where(), "the answer is neither text nor a number", "write it as text");
}

// The answer, with its reasoning where it has some and the model shall think.
std::string LearnedText(const ModelText& text, const DataSection& data, const Prompt& prompt) {
  const std::string answer = AnswerText(prompt);
  if (prompt.reasoning.empty() || data.thinking == Thinking::kOff) return answer;
  if (!text.chat.has_reasoning() || !IsChat(data, prompt)) {
    throw Error(prompt.Where(),
                fmt::format("the format {} has no place for reasoning_content", text.chat.name()),
                "put it into the content, or leave it out");
  }
  return text.chat.Reply({"assistant", answer, prompt.reasoning});
}

// What becomes of examples that do not fit into the context.
class ContextFit {
 public:
  ContextFit(int64_t context, Overlong overlong) : context_(context), overlong_(overlong) {}

  // False where the example is to be left out.
  bool Keep(const Prompt& prompt, SftExample* example) {
    // Nothing is predicted from the last token.
    const auto length = static_cast<int64_t>(example->prompt.size() + example->response.size()) - 1;
    const int64_t excess = length - context_;
    if (excess <= 0) return true;
    const bool cuttable = excess < static_cast<int64_t>(example->prompt.size());
    if (overlong_ == Overlong::kError || (overlong_ == Overlong::kTruncateLeft && !cuttable)) {
      throw Error(prompt.Where(),
                  fmt::format("prompt and answer have {} tokens, the model reads {}", length + 1, context_),
                  "shorten them, or leave such rows out with data.overlong=drop");
    }
    if (overlong_ == Overlong::kDrop) {
      ++dropped_;
      return false;
    }
    example->prompt.erase(example->prompt.begin(), example->prompt.begin() + excess);
    ++cut_;
    return true;
  }

  void Report() const {
    if (dropped_ + cut_ == 0) return;
    Tell("augur: warning: data.train: {} examples {} because they are longer than the context of {}\n",
         dropped_ + cut_, dropped_ > 0 ? "left out" : "cut at the left", context_);
  }

 private:
  const int64_t context_;
  const Overlong overlong_;
  int64_t dropped_ = 0, cut_ = 0;
};

}  // namespace

std::vector<SftExample> LoadSftExamples(const SftConfig& config) {
  const ModelConfig model = ReadModelConfig(config.model.path);
  const ModelText text = ModelText::FromDirectory(config.model.path, config.data);
  TokenizedPrompts prompts = LoadPrompts(text, config.data, config.data.train, {.whole_answers = true});
  if (config.log.console) TellChatFormat(config.model.path, text, config.data, prompts.prompts);
  ContextFit fit(model.max_positions, config.data.overlong);
  std::vector<SftExample> examples;
  for (size_t i = 0; i < prompts.prompts.size(); ++i) {
    CheckStop();
    const Prompt& prompt = prompts.prompts[i];
    SftExample example{std::move(prompts.tokens[i]),
                       text.tokenizer.Encode(LearnedText(text, config.data, prompt))};
    example.response.push_back(IsChat(config.data, prompt) ? text.turn_end : text.eos_token);
    if (fit.Keep(prompt, &example)) examples.push_back(std::move(example));
  }
  fit.Report();
  if (examples.empty()) {
    throw Error("data.train",
                fmt::format("no example fits into the context of {} tokens", model.max_positions),
                "shorten them");
  }
  return examples;
}

}  // namespace augur
