#include "reward/scorer.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/stop_signals.h"
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

// What _reward_worker.py reads of a response.
Json RequestOf(const PromptResponse& response) {
  const Prompt& prompt = *response.prompt;
  Json columns = prompt.columns.is_object() ? prompt.columns : Json::object();
  for (const auto& [name, value] : {std::pair<const char*, const Json&>("answer", prompt.ground_truth),
                                    {"ground_truth", prompt.ground_truth}}) {
    if (!columns.contains(name)) columns[name] = value;
  }
  if (!columns.contains("data_source")) columns["data_source"] = prompt.data_source;
  Json text = prompt.text;
  if (!prompt.messages.empty()) {
    text = Json::array();
    for (const ChatMessage& message : prompt.messages) {
      text.push_back({{"role", message.role}, {"content", message.content}});
    }
  }
  return {{"data_source", prompt.data_source},
          {"prompt", std::move(text)},
          {"text", response.text},
          {"tokens", response.tokens},
          {"ground_truth", prompt.ground_truth},
          {"extra_info", prompt.extra_info},
          {"columns", std::move(columns)},
          {"trainer_state", {{"global_step", response.steps.done}, {"max_steps", response.steps.total}}}};
}

RewardOutcome Await(std::future<RewardOutcome>* outcome) {
  while (outcome->wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    if (StopSignals::Received() != nullptr) throw Stopped();
  }
  return outcome->get();
}

}  // namespace

Scorer::Scorer(std::string verifier, std::string where, double error_score)
    : verifier_(std::move(verifier)), where_(std::move(where)), error_score_(error_score) {
  if (verifier_ != "auto") FindVerifier(verifier_, where_);
}

Scorer::Scorer(const PythonReward& reward, double error_score)
    : verifier_(reward.function),
      where_("reward.python"),
      error_score_(error_score),
      workers_(StartRewardWorkers(reward)) {}

Scorer::~Scorer() = default;

std::string_view Scorer::NameFor(const Prompt& prompt) const {
  if (workers_) return verifier_;
  return VerifierFor(verifier_, prompt, where_).name;
}

// Without "acc" a response is right from a score of 1 on, which is what most functions give it; without
// "pred" it votes for its whole text.
Score Scorer::FromOutcome(const RewardOutcome& outcome, const std::string& text) const {
  if (outcome.failed) {
    return {.value = error_score_, .failed = true, .error = outcome.error, .told = outcome.told};
  }
  const auto accuracy = outcome.figures.find("acc");
  if (std::isnan(outcome.score)) return {.value = outcome.score, .told = outcome.told};
  const bool right = accuracy == outcome.figures.end() ? outcome.score >= 1 : accuracy->second >= 0.5;
  return {.value = outcome.score,
          .right = right,
          .answered = true,
          .answer = outcome.answer.value_or(text),
          .figures = outcome.figures,
          .told = outcome.told};
}

std::future<Score> Scorer::Start(PromptResponse response) const {
  if (!workers_) {
    return std::async(std::launch::deferred, [this, response = std::move(response)] {
      return ScoreOne(VerifierFor(verifier_, *response.prompt, where_), response, error_score_);
    });
  }
  return std::async(std::launch::deferred, [this, outcomes = workers_->Score({RequestOf(response)}),
                                            text = std::move(response.text)]() mutable {
    return FromOutcome(Await(&outcomes[0]), text);
  });
}

// The responses of a group that have come so far, and their outcomes once they are being scored.
struct GroupScorer::Group {
  std::mutex mutex;
  std::map<size_t, Json> waiting;  // by place
  std::map<size_t, std::future<RewardOutcome>> outcomes;

  void Send(RewardWorkers* workers) {
    std::vector<Json> requests;
    for (auto& [place, request] : waiting) requests.push_back(std::move(request));
    if (requests.empty()) return;
    auto pending = workers->Score(requests);
    size_t i = 0;
    for (const auto& [place, request] : waiting) outcomes[place] = std::move(pending[i++]);
    waiting.clear();
  }
};

GroupScorer::GroupScorer(const Scorer& scorer, size_t group) : scorer_(scorer), size_(group) {}
GroupScorer::~GroupScorer() = default;

std::future<Score> GroupScorer::Start(size_t place, PromptResponse response) {
  if (size_ == 1 || !scorer_.takes_groups()) return scorer_.Start(std::move(response));
  std::shared_ptr<Group>& group = groups_[place / size_];
  if (!group) group = std::make_shared<Group>();
  RewardWorkers* workers = scorer_.workers_.get();
  {
    const std::lock_guard lock(group->mutex);
    group->waiting[place] = RequestOf(response);
    if (group->waiting.size() == size_) group->Send(workers);
  }
  return std::async(std::launch::deferred,
                    [scorer = &scorer_, workers, group, place, text = std::move(response.text)] {
                      const auto outcome = [&] {
                        const std::lock_guard lock(group->mutex);
                        group->Send(workers);
                        return &group->outcomes.at(place);
                      }();
                      return scorer->FromOutcome(Await(outcome), text);
                    });
}

void LimitErrors(const ScoringErrors& errors, double max_errors, std::string_view whose, bool uses_python) {
  const double most = max_errors * static_cast<double>(errors.responses);
  const bool all = errors.errors == errors.responses;
  if (errors.errors == 0 || (!all && static_cast<double>(errors.errors) <= most)) return;
  const std::string what =
      all ? fmt::format("not one of {} {} responses could be scored", whose, errors.responses)
          : fmt::format("{} of {} {} responses could not be scored, more than reward.max_errors ({})",
                        errors.errors, whose, errors.responses, max_errors);
  throw Error(errors.where, fmt::format("{}; here: {}", what, errors.reason),
              fmt::format("correct the data, {} or reward.max_errors",
                          uses_python ? "the function of reward.python" : "reward.verifier"));
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
