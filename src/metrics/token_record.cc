#include "metrics/token_record.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"
#include "metrics/append_lines.h"

namespace augur {
namespace {

constexpr double kUnused = -std::numeric_limits<double>::infinity();

// What a step of the sampled token's logit alone does to the divergence.
double LocalChange(const MaskRule& rule, const TokenView& token) {
  const LogitGradient gradient = ReferenceGradient(rule.proximity, rule.support, token);
  return gradient.everywhere * std::exp(token.policy[0]) + gradient.at_atom[0];
}

// Copies the support in probabilities.
void FillSupport(const TokenView& token, std::span<const int32_t> ids, const TokenText& text,
                 TokenRecord* record) {
  double mu_rest = 1, pi_rest = 1;
  for (size_t i = 0; i < token.behaviour.size(); ++i) {
    if (token.behaviour[i] == kUnused) continue;
    record->support.push_back(
        {ids[i], text(ids[i]), std::exp(token.behaviour[i]), std::exp(token.policy[i])});
    mu_rest -= record->support.back().mu;
    pi_rest -= record->support.back().pi;
  }
  if (token.vocab_size > static_cast<int64_t>(record->support.size())) {
    record->mu_tail = std::max(mu_rest, 0.0);
    record->pi_tail = token.policy_tail.value_or(std::max(pi_rest, 0.0));
  }
}

Json TokenToJson(const TokenRecord& token) {
  Json support = Json::array();
  for (const SupportAtom& a : token.support) support.push_back({a.id, LossyUtf8(a.text), a.mu, a.pi});
  return {{"id", token.id},
          {"text", LossyUtf8(token.text)},
          {"ratio", token.ratio},
          {"divergence", token.divergence},
          {"direction", token.direction},
          {"local", token.local},
          {"global", token.global},
          {"advantage", token.advantage},
          {"keep", token.keep},
          {"outside", token.outside},
          {"disagree", token.disagree},
          {"missing", token.missing},
          {"support", std::move(support)},
          {"mu_tail", token.mu_tail},
          {"pi_tail", token.pi_tail}};
}

// Reads keys of one object into fields; a key that is absent leaves the field as it is.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string_view where) : object_(object), where_(where) {
    if (!object.is_object()) throw Error(where, "expected a JSON object", "the file is damaged");
  }

  template <typename T>
  void Read(const char* key, T* field) const {
    const auto found = object_.find(key);
    if (found == object_.end()) return;
    try {
      if (std::is_floating_point_v<T> && found->is_null()) {
        if constexpr (std::is_floating_point_v<T>) *field = std::numeric_limits<T>::quiet_NaN();
      } else {
        *field = found->get<T>();
      }
    } catch (const Json::exception&) {
      throw Error(where_, fmt::format("\"{}\" is {}", key, KindOf(*found)), "the file is damaged");
    }
  }

  // The elements of an array; none where the key is absent.
  Json Array(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) return Json::array();
    if (!found->is_array())
      throw Error(where_, fmt::format("\"{}\" is no array", key), "the file is damaged");
    return *found;
  }

 private:
  const Json& object_;
  std::string_view where_;
};

TokenRecord TokenFromJson(const Json& json, std::string_view where) {
  const FieldReader reader(json, where);
  TokenRecord token;
  reader.Read("id", &token.id);
  reader.Read("text", &token.text);
  reader.Read("ratio", &token.ratio);
  reader.Read("divergence", &token.divergence);
  reader.Read("direction", &token.direction);
  reader.Read("local", &token.local);
  reader.Read("global", &token.global);
  reader.Read("advantage", &token.advantage);
  reader.Read("keep", &token.keep);
  reader.Read("outside", &token.outside);
  reader.Read("disagree", &token.disagree);
  reader.Read("missing", &token.missing);
  reader.Read("mu_tail", &token.mu_tail);
  reader.Read("pi_tail", &token.pi_tail);
  for (const Json& atom : reader.Array("support")) {
    if (!atom.is_array() || atom.size() != 4 || !atom[0].is_number_integer() || !atom[1].is_string() ||
        !atom[2].is_number() || !atom[3].is_number()) {
      throw Error(where, "a support entry is not [id, text, mu, pi]", "the file is damaged");
    }
    token.support.push_back({atom[0], atom[1], atom[2], atom[3]});
  }
  return token;
}

}  // namespace

TokenRecord DescribeToken(const MaskRule& rule, const TokenView& token, std::span<const int32_t> ids,
                          const TokenText& text) {
  TokenRecord record;
  record.id = ids.empty() ? -1 : ids[0];
  record.text = record.id < 0 ? "" : text(record.id);
  record.advantage = token.advantage;
  const TokenDecision decision = DecideReference(rule, token);
  record.keep = decision.keep;
  record.missing = decision.missing;
  if (decision.missing) return record;
  FillSupport(token, ids, text, &record);
  record.ratio = decision.ratio;
  record.divergence = decision.divergence;
  record.direction = decision.direction;
  record.outside = decision.outside;
  record.disagree = decision.disagree;
  record.local = LocalChange(rule, token);
  record.global = ReferenceChange(rule.proximity, rule.support, rule.tail, token) - record.local;
  return record;
}

Json ToJson(const ResponseRecord& record) {
  Json tokens = Json::array();
  for (const TokenRecord& token : record.tokens) tokens.push_back(TokenToJson(token));
  Json spans = Json::array();
  for (const SpanRecord& span : record.spans) {
    spans.push_back({span.begin, span.end, LossyUtf8(span.source), span.weight_version});
  }
  return {{"step", record.step},
          {"data_source", LossyUtf8(record.data_source)},
          {"prompt", LossyUtf8(record.prompt)},
          {"answer", LossyUtf8(record.answer)},
          {"reward", record.reward},
          {"advantage", record.advantage},
          {"finish", LossyUtf8(record.finish)},
          {"rule", LossyUtf8(record.rule)},
          {"delta", record.delta},
          {"spans", std::move(spans)},
          {"tokens", std::move(tokens)}};
}

ResponseRecord ResponseFromJson(const Json& line, std::string_view where) {
  const FieldReader reader(line, where);
  ResponseRecord record;
  reader.Read("step", &record.step);
  reader.Read("data_source", &record.data_source);
  reader.Read("prompt", &record.prompt);
  reader.Read("answer", &record.answer);
  reader.Read("reward", &record.reward);
  reader.Read("advantage", &record.advantage);
  reader.Read("finish", &record.finish);
  reader.Read("rule", &record.rule);
  reader.Read("delta", &record.delta);
  for (const Json& span : reader.Array("spans")) {
    if (!span.is_array() || span.size() != 4 || !span[0].is_number_integer() ||
        !span[1].is_number_integer() || !span[2].is_string() || !span[3].is_number_integer()) {
      throw Error(where, "a span is not [begin, end, source, weight version]", "the file is damaged");
    }
    record.spans.push_back({span[0], span[1], span[2], span[3]});
  }
  for (const Json& token : reader.Array("tokens")) record.tokens.push_back(TokenFromJson(token, where));
  return record;
}

void AppendTokenRecords(const std::filesystem::path& run, std::span<const ResponseRecord> records) {
  std::string lines;
  for (const ResponseRecord& record : records) lines += ToJson(record).dump() + '\n';
  AppendLines(run / kTokenRecordsFile, lines);
}

}  // namespace augur
