// From scored responses to avg@k, maj@k and pass@k.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace augur {

// Sums of further numbers of responses, and how many had them, by name.
using FigureSums = std::map<std::string, std::pair<double, int64_t>>;

// All responses to one prompt.
struct PromptScores {
  std::string data_source;
  std::vector<bool> right;
  std::vector<double> scores;                       // as the verifier gave them; NaN of what was not scored
  std::vector<std::optional<std::string>> answers;  // what each voted for; nothing abstains
  int64_t tokens = 0, cut_off = 0;                  // of the responses; how many ran into max_tokens
  int64_t errors = 0;                               // responses whose reward function failed
  std::string error = {};                           // why the first of them did
  FigureSums figures = {};
  std::string fault = {};  // why the prompt has no part in the figures; empty where it has
};

// Figures of several prompts, each the mean over prompts. Those that failed are counted and left out; the
// figures of none are NaN.
struct SourceScores {
  int64_t prompts = 0, failed = 0, samples = 0;
  double average = 0;              // avg@k: the share of right responses
  double majority = 0;             // maj@k: whether the answer most responses give is right
  std::map<int64_t, double> pass;  // pass@n for n = 1, 2, 4, ... and k: whether one of n is right
  double score = 0;                // the verifier's mean score, over prompts of which a response was scored
  int64_t scored = 0;              // how many those are
  double answered = 0;             // the share of responses in which an answer was found, right or wrong
  double tokens = 0, cut_off = 0;  // mean length of the responses; the share that ran into max_tokens
  int64_t errors = 0;              // responses whose reward function failed
  FigureSums figures = {};         // over all responses
};

// The chance that at least one of `draw` responses, taken from `samples` without replacement, is right when
// `right` of them are: 1 - C(samples - right, draw) / C(samples, draw), the unbiased estimate of pass@draw.
double PassAt(int64_t samples, int64_t right, int64_t draw);

// Whether the most frequent answer is right; of equally frequent ones, the one given first. False where all
// abstain.
bool MajorityRight(const PromptScores& prompt);

// By data source. Every prompt without a fault has the same number of samples, at least one.
std::map<std::string, SourceScores> ScoresBySource(const std::vector<PromptScores>& prompts);
// All of them together, each prompt counting alike.
SourceScores ScoresOverall(const std::vector<PromptScores>& prompts);

}  // namespace augur
