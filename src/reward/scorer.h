// Scores of responses by verifiers or a Python function, whatever becomes of them: what training and
// evaluation call.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/prompt.h"
#include "reward/python_function.h"

namespace augur {

// How far the run is for which a response is scored; outside of runs, zeros. What TRL's functions see of it.
struct StepsOfRun {
  int64_t done = 0;   // before the step that the response is for: the same whenever it was generated
  int64_t total = 0;  // train.steps
};

// A response to be scored. The prompt must outlive it.
struct PromptResponse {
  const Prompt* prompt = nullptr;
  std::string text;
  std::vector<int32_t> tokens = {};
  StepsOfRun steps = {};
};

struct Score {
  double value = 0;                            // NaN where the function returned None: it is not scored
  bool right = false;                          // what the verifier gives a correct response
  bool answered = false;                       // an answer was found in the response, right or wrong
  bool failed = false;                         // it could not be scored; value is the score of errors
  std::string answer = {};                     // what it votes for; equal texts are equal answers
  std::string error = {};                      // why it failed, without the place of the prompt
  std::map<std::string, double> figures = {};  // further numbers that a Python function returned
  std::string told = {};                       // what was written to stderr about it: a first fault, in full

  bool unscored() const { return std::isnan(value); }
};

class Scorer {
 public:
  // `verifier` is a name of `augur verify` or "auto"; `where` says where it was set. Throws Error for an
  // unknown name.
  Scorer(std::string verifier, std::string where, double error_score = 0);
  // Starts the processes that run the function; see StartRewardWorkers for what it throws.
  Scorer(const PythonReward& reward, double error_score);
  ~Scorer();

  // Whether a Python function scores.
  bool uses_python() const { return workers_ != nullptr; }

  // The name of what scores the responses to a prompt.
  std::string_view NameFor(const Prompt& prompt) const;

  // Begins to score a response: a Python function does so in the background, a verifier when the future is
  // asked. Waiting ends with Stopped where CheckStop says so.
  std::future<Score> Start(PromptResponse response) const;

  // Whether a Python function takes the responses to a prompt together.
  bool takes_groups() const { return workers_ && workers_->takes_groups(); }

  // Worker processes started so far in place of others that died or hung.
  int64_t restarts() const { return workers_ ? workers_->restarts() : 0; }

 private:
  friend class GroupScorer;
  Score FromOutcome(const RewardOutcome& outcome, const std::string& text) const;

  const std::string verifier_, where_;
  const double error_score_;
  const std::unique_ptr<RewardWorkers> workers_;  // of a Python function
};

// Scores groups of responses: those of a group in one call where a Python function takes lists, as TRL's do,
// and each by itself where not.
class GroupScorer {
 public:
  // The scorer must outlive what Start gives.
  GroupScorer(const Scorer& scorer, size_t group);
  ~GroupScorer();

  // Begins to score the response at `place`, that is, of group place / `group`. A group is scored once it is
  // complete, or when one of its scores is asked for.
  std::future<Score> Start(size_t place, PromptResponse response);

 private:
  struct Group;
  const Scorer& scorer_;
  const size_t size_;
  std::map<size_t, std::shared_ptr<Group>> groups_;
};

// How many of `responses` could not be scored, and where and why the first.
struct ScoringErrors {
  int64_t errors = 0, responses = 0;
  std::string where = {}, reason = {};
};

// Throws Error with that place and reason where not one could be scored, or more could not than the share
// `max_errors` (reward.max_errors). `whose` says in the message whose responses they are.
void LimitErrors(const ScoringErrors& errors, double max_errors, std::string_view whose, bool uses_python);

// What scores each data source of the prompts; several names, joined by " and ", where prompts of one source
// are scored differently.
using VerifierNames = std::map<std::string, std::string>;
VerifierNames NamesBySource(const Scorer& scorer, std::span<const Prompt> prompts);

// "sort by exact, openai/gsm8k by gsm8k"; of many sources the first few.
std::string DescribeNames(const VerifierNames& names);

}  // namespace augur
