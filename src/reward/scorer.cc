#include "reward/scorer.h"

#include <fmt/format.h>

#include <exception>
#include <set>
#include <utility>

#include "reward/verifier.h"

namespace augur {
namespace {

Score ScoreOne(const Verifier& verifier, const PromptResponse& response, double error_score) {
  try {
    const double value = verifier.score(response.text, response.prompt->ground_truth);
    const bool right = value == verifier.right;
    const auto answer = verifier.answer(response.text);
    return {.value = value,
            .right = right,
            .answered = right || answer.has_value(),
            .failed = false,
            .answer = answer.value_or(right ? response.text : "")};
  } catch (const std::exception& error) {
    return {.value = error_score, .failed = true, .error = error.what()};
  }
}

}  // namespace

Scorer::Scorer(std::string verifier, std::string where, double error_score)
    : verifier_(std::move(verifier)), where_(std::move(where)), error_score_(error_score) {
  if (verifier_ != "auto") FindVerifier(verifier_, where_);
}

std::string_view Scorer::NameFor(const Prompt& prompt) const {
  return VerifierFor(verifier_, prompt, where_).name;
}

std::vector<Score> Scorer::ScoreAll(std::span<const PromptResponse> responses) const {
  std::vector<Score> scores;
  scores.reserve(responses.size());
  for (const PromptResponse& response : responses) {
    scores.push_back(ScoreOne(VerifierFor(verifier_, *response.prompt, where_), response, error_score_));
  }
  return scores;
}

VerifierNames NamesBySource(const Scorer& scorer, std::span<const Prompt> prompts) {
  std::map<std::string, std::set<std::string>> found;
  for (const Prompt& prompt : prompts) {
    if (prompt.fault.empty()) found[prompt.data_source].emplace(scorer.NameFor(prompt));
  }
  VerifierNames names;
  for (const auto& [source, verifiers] : found) {
    for (const std::string& verifier : verifiers) {
      std::string& text = names[source];
      text += (text.empty() ? "" : " and ") + verifier;
    }
  }
  return names;
}

std::string DescribeNames(const VerifierNames& names) {
  constexpr size_t kMostShown = 8;
  std::string text;
  size_t shown = 0;
  for (const auto& [source, verifier] : names) {
    if (shown++ == kMostShown) {
      text += fmt::format(", and {} more", names.size() - kMostShown);
      break;
    }
    text += fmt::format("{}{} by {}", text.empty() ? "" : ", ", source, verifier);
  }
  return text;
}

}  // namespace augur
