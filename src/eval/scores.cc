#include "eval/scores.h"

#include <algorithm>
#include <cmath>

namespace augur {
namespace {

std::vector<int64_t> PassCounts(int64_t samples) {
  std::vector<int64_t> counts;
  for (int64_t n = 1; n < samples; n *= 2) counts.push_back(n);
  counts.push_back(samples);
  return counts;
}

void Add(SourceScores* sum, const PromptScores& prompt) {
  if (!prompt.fault.empty()) {
    ++sum->failed;
    return;
  }
  const auto samples = static_cast<int64_t>(prompt.right.size());
  const auto share = [&](int64_t count) { return static_cast<double>(count) / static_cast<double>(samples); };
  const int64_t right = std::ranges::count(prompt.right, true);
  ++sum->prompts;
  sum->samples = samples;
  sum->average += share(right);
  sum->majority += MajorityRight(prompt) ? 1 : 0;
  for (const int64_t n : PassCounts(samples)) sum->pass[n] += PassAt(samples, right, n);
  double score = 0, scored = 0;
  for (const double value : prompt.scores) {
    if (std::isnan(value)) continue;
    score += value;
    ++scored;
  }
  if (scored > 0) {
    sum->score += score / scored;
    ++sum->scored;
  }
  sum->answered += share(std::ranges::count_if(prompt.answers, [](const auto& a) { return a.has_value(); }));
  sum->tokens += share(prompt.tokens);
  sum->cut_off += share(prompt.cut_off);
  sum->errors += prompt.errors;
  for (const auto& [name, figure] : prompt.figures) {
    sum->figures[name].first += figure.first;
    sum->figures[name].second += figure.second;
  }
}

void Divide(SourceScores* sum) {
  const auto prompts = static_cast<double>(sum->prompts);
  for (double* figure : {&sum->average, &sum->majority, &sum->answered, &sum->tokens, &sum->cut_off}) {
    *figure /= prompts;
  }
  sum->score /= static_cast<double>(sum->scored);
  for (auto& [n, value] : sum->pass) value /= prompts;
}

}  // namespace

double PassAt(int64_t samples, int64_t right, int64_t draw) {
  // The product of (samples - right - i) / (samples - i) over the draws: all of them wrong.
  double all_wrong = 1;
  for (int64_t i = 0; i < draw; ++i) {
    all_wrong *=
        static_cast<double>(std::max<int64_t>(samples - right - i, 0)) / static_cast<double>(samples - i);
  }
  return 1 - all_wrong;
}

bool MajorityRight(const PromptScores& prompt) {
  std::map<std::string, int64_t> votes;
  for (const auto& answer : prompt.answers) {
    if (answer) ++votes[*answer];
  }
  int64_t most = 0;
  bool right = false;
  for (size_t i = 0; i < prompt.answers.size(); ++i) {
    if (!prompt.answers[i] || votes[*prompt.answers[i]] <= most) continue;
    most = votes[*prompt.answers[i]];
    right = prompt.right[i];
  }
  return right;
}

std::map<std::string, SourceScores> ScoresBySource(const std::vector<PromptScores>& prompts) {
  std::map<std::string, SourceScores> sources;
  for (const PromptScores& prompt : prompts) Add(&sources[prompt.data_source], prompt);
  for (auto& [name, scores] : sources) Divide(&scores);
  return sources;
}

SourceScores ScoresOverall(const std::vector<PromptScores>& prompts) {
  SourceScores all;
  for (const PromptScores& prompt : prompts) Add(&all, prompt);
  Divide(&all);
  return all;
}

}  // namespace augur
