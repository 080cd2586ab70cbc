#include "analysis/seed_file.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "base/file.h"

namespace augur {
namespace {

// JSON has no NaN: nlohmann writes null for it.
double NumberOf(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

std::vector<double> NumbersOf(const Json& json) {
  std::vector<double> numbers;
  for (const Json& value : json) numbers.push_back(NumberOf(value));
  return numbers;
}

Json JsonOf(const SeedOutcome& outcome) {
  Json outside = Json::array(), criteria = Json::array(), parts = Json::array();
  for (const OutsideToken& t : outcome.outside) {
    outside.push_back({t.sequence, t.position, t.id, t.advantage, t.ratio, t.divergence});
  }
  for (const CriterionOutcome& c : outcome.criteria) {
    criteria.push_back({{"name", c.name},
                        {"direction", c.direction},
                        {"keep", c.keep},
                        {"change", c.change},
                        {"surrogate_kept", c.surrogate_kept}});
  }
  for (const ChangeParts& p : outcome.parts) {
    parts.push_back({p.token, p.own, p.others, p.momentum, p.weight_decay});
  }
  return {{"seed", outcome.seed},
          {"tokens", outcome.tokens},
          {"outside", std::move(outside)},
          {"unmasked_change", outcome.unmasked_change},
          {"criteria", std::move(criteria)},
          {"parts", std::move(parts)},
          {"momentum_cosine", outcome.momentum_cosine}};
}

SeedOutcome OutcomeOf(const Json& json) {
  SeedOutcome outcome;
  outcome.seed = json.at("seed").get<int64_t>();
  outcome.tokens = json.at("tokens").get<int64_t>();
  for (const Json& t : json.at("outside")) {
    outcome.outside.push_back({t.at(0).get<int64_t>(), t.at(1).get<int64_t>(), t.at(2).get<int32_t>(),
                               NumberOf(t.at(3)), NumberOf(t.at(4)), NumberOf(t.at(5))});
  }
  outcome.unmasked_change = NumbersOf(json.at("unmasked_change"));
  for (const Json& c : json.at("criteria")) {
    outcome.criteria.push_back({c.at("name").get<std::string>(), NumbersOf(c.at("direction")),
                                c.at("keep").get<std::vector<bool>>(), NumbersOf(c.at("change")),
                                NumberOf(c.at("surrogate_kept"))});
  }
  for (const Json& p : json.at("parts")) {
    outcome.parts.push_back(
        {p.at(0).get<size_t>(), NumberOf(p.at(1)), NumberOf(p.at(2)), NumberOf(p.at(3)), NumberOf(p.at(4))});
  }
  outcome.momentum_cosine = NumberOf(json.at("momentum_cosine"));
  return outcome;
}

}  // namespace

std::filesystem::path SeedFile(const std::filesystem::path& folder, int64_t seed) {
  return folder / fmt::format("seed-{}.json", seed);
}

void WriteSeedRecord(const std::filesystem::path& folder, int64_t seed, const SeedRecord& record) {
  Json outcomes = Json::array();
  for (const SeedOutcome& outcome : record.outcomes) outcomes.push_back(JsonOf(outcome));
  const Json json = {{"sequences", record.sequences},
                     {"full_vocabulary", record.full_vocabulary},
                     {"outcomes", std::move(outcomes)}};
  WriteFileAtomically(SeedFile(folder, seed), json.dump() + "\n");
}

SeedRecord ReadSeedRecord(const std::filesystem::path& folder, int64_t seed) {
  const std::filesystem::path file = SeedFile(folder, seed);
  const Json json = ParseJson(ReadFile(file), file.string());
  SeedRecord record;
  try {
    record.sequences = json.at("sequences").get<int64_t>();
    record.full_vocabulary = json.at("full_vocabulary").get<bool>();
    for (const Json& outcome : json.at("outcomes")) record.outcomes.push_back(OutcomeOf(outcome));
  } catch (const Json::exception& error) {
    throw Error(file.string(), fmt::format("is no record of a seed: {}", error.what()),
                "remove it; the same command measures that seed again");
  }
  return record;
}

}  // namespace augur
