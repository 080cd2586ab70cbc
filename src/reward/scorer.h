// Scores of responses, whatever becomes of the verifier: what training and evaluation call.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/prompt.h"

namespace augur {

// A response to be scored. The prompt must outlive it.
struct PromptResponse {
  const Prompt* prompt = nullptr;
  std::string text;
};

struct Score {
  double value = 0;
  bool right = false;       // what the verifier gives a correct response
  bool answered = false;    // an answer was found in the response, right or wrong
  bool failed = false;      // the verifier could not score it; value is the score of errors
  std::string answer = {};  // what it votes for; equal texts are equal answers
  std::string error = {};   // why it failed
};

class Scorer {
 public:
  // `verifier` is a name of `augur verify` or "auto"; `where` says where it was set. Throws Error for an
  // unknown name.
  Scorer(std::string verifier, std::string where, double error_score = 0);

  // The name of what scores the responses to a prompt.
  std::string_view NameFor(const Prompt& prompt) const;

  // In the order of the responses.
  std::vector<Score> ScoreAll(std::span<const PromptResponse> responses) const;

 private:
  const std::string verifier_, where_;
  const double error_score_;
};

// What scores each data source of the prompts; several names, joined by " and ", where prompts of one source
// are scored differently.
using VerifierNames = std::map<std::string, std::string>;
VerifierNames NamesBySource(const Scorer& scorer, std::span<const Prompt> prompts);

// "sort by exact, openai/gsm8k by gsm8k"; of many sources the first few.
std::string DescribeNames(const VerifierNames& names);

}  // namespace augur
