#include "metrics/token_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "mask/random_token.h"
#include "message_of.h"

namespace augur {
namespace {

std::string Name(int32_t id) { return "t" + std::to_string(id); }

TEST(TokenRecord, SaysWhatTheReferenceDecides) {
  std::mt19937_64 random(7);
  for (const std::string_view preset : PresetNames()) {
    const MaskRule rule = PresetRule(preset);
    for (int i = 0; i < 50; ++i) {
      const FullToken token = RandomToken(random, 60, 8, 2, 1);
      const TokenDecision decision = DecideReference(rule, token.View());
      const TokenRecord record = DescribeToken(rule, token.View(), token.support, Name);
      EXPECT_EQ(record.keep, decision.keep);
      EXPECT_EQ(record.outside, decision.outside);
      EXPECT_EQ(record.disagree, decision.disagree);
      EXPECT_EQ(record.divergence, decision.divergence);
      if (rule.direction == Direction::kPredicted) {
        EXPECT_NEAR(record.local + record.global, decision.direction, 1e-12);
      }
      // The local part sees what the ratio sees; under the reverse KL, whether it is beyond the mean.
      if (rule.proximity != Proximity::kReverseKl) {
        EXPECT_EQ(record.local > 0, decision.ratio > 1) << preset;
      }
      double mu = record.mu_tail, pi = record.pi_tail;
      for (const SupportAtom& atom : record.support) mu += atom.mu, pi += atom.pi;
      EXPECT_NEAR(mu, 1, 1e-12);
      EXPECT_NEAR(pi, 1, 1e-12);
    }
  }
}

TEST(TokenRecord, LeavesUnusedColumnsOutAndMarksAMissingSupport) {
  constexpr double kUnused = -std::numeric_limits<double>::infinity();
  const std::vector<double> behaviour{std::log(0.5), std::log(0.3), kUnused};
  const std::vector<double> policy{std::log(0.4), std::log(0.3), 0};
  const std::vector<int32_t> ids{4, 2, -1};
  const TokenRecord record = DescribeToken({}, {behaviour, policy, 1, 10, 0, {}}, ids, Name);
  ASSERT_EQ(record.support.size(), 2u);
  EXPECT_EQ(record.support[1].text, "t2");
  EXPECT_NEAR(record.mu_tail, 0.2, 1e-12);
  const std::vector<double> none(3, kUnused);
  EXPECT_TRUE(DescribeToken({}, {none, policy, 1, 10, 0, {}}, ids, Name).missing);
}

// One minus the rest has lost its digits where the support holds nearly all.
TEST(TokenRecord, ThePolicysTailIsTheOneThatIsKnown) {
  const std::vector<double> behaviour{std::log(0.5), std::log(0.3)}, policy{std::log(0.6), std::log(0.4)};
  const std::vector<int32_t> ids{4, 2};
  TokenView token{behaviour, policy, 1, 10, 0, 1e-9};
  EXPECT_EQ(DescribeToken({}, token, ids, Name).pi_tail, 1e-9);
  token.policy_tail = {};
  EXPECT_NEAR(DescribeToken({}, token, ids, Name).pi_tail, 0, 1e-15);
  token.vocab_size = 2;  // there is nothing outside
  EXPECT_EQ(DescribeToken({}, token, ids, Name).mu_tail, 0);
}

ResponseRecord Example() {
  ResponseRecord record{3, "sort", "a\xff", "</script>\n", 1, 0.5, "eos", "proximity=kl", 0.15, {}};
  TokenRecord token;
  token.id = 9;
  token.text = "\xe2\x82";  // the beginning of a character
  token.ratio = std::numeric_limits<double>::quiet_NaN();
  token.support = {{9, "x", 0.25, 0.5}, {-1, "\xff", 0.5, 0.25}};
  record.tokens = {token};
  return record;
}

TEST(TokenRecord, ComesBackFromItsLineWithTextMadeValid) {
  const std::string line = ToJson(Example()).dump();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const ResponseRecord back = ResponseFromJson(ParseJson(line, "line"), "line");
  EXPECT_EQ(back.step, 3);
  EXPECT_EQ(back.prompt, "a\xef\xbf\xbd");
  EXPECT_EQ(back.answer, "</script>\n");
  ASSERT_EQ(back.tokens.size(), 1u);
  EXPECT_EQ(back.tokens[0].text, "\xef\xbf\xbd");
  EXPECT_TRUE(std::isnan(back.tokens[0].ratio));
  EXPECT_EQ(back.tokens[0].support[0].pi, 0.5);
}

TEST(TokenRecord, ReadsALineWithoutSomeKeysAndNamesAFieldOfTheWrongType) {
  EXPECT_EQ(ResponseFromJson(Json{{"step", 5}}, "f:1").step, 5);
  EXPECT_EQ(ResponseFromJson(Json{{"tokens", {Json::object()}}}, "f:1").tokens.size(), 1u);
  for (const Json& bad : {Json(3), Json{{"step", "x"}}, Json{{"tokens", 1}}, Json{{"tokens", {7}}},
                          Json{{"tokens", {{{"support", {1}}}}}}}) {
    EXPECT_TRUE(MessageOf([&] { ResponseFromJson(bad, "f:1"); }).starts_with("f:1")) << bad;
  }
}

TEST(TokenRecord, AppendsAfterALineThatWasCutOff) {
  const std::filesystem::path run = std::filesystem::path(testing::TempDir()) / "augur_token_record";
  std::filesystem::create_directories(run);
  std::ofstream(run / kTokenRecordsFile) << "{\"step\": 1, \"tok";
  AppendTokenRecords(run, std::vector{Example(), Example()});
  std::ifstream file(run / kTokenRecordsFile);
  std::string line;
  int whole = 0;
  while (std::getline(file, line)) whole += Json::accept(line);
  EXPECT_EQ(whole, 2);
  std::filesystem::remove_all(run);
}

TEST(TokenRecord, EveryFieldComesBack) {
  ResponseRecord record{3, "sort", "p", "a", 1.5, -0.5, "length", "proximity=kl", 0.25, {}};
  TokenRecord token;
  token.id = 9;
  token.text = "x";
  token.ratio = 1.5;
  token.divergence = 0.25;
  token.direction = -0.125;
  token.local = 0.5;
  token.global = -0.625;
  token.advantage = -2;
  token.keep = false;
  token.outside = token.disagree = true;
  token.support = {{9, "x", 0.25, 0.5}};
  token.mu_tail = 0.75;
  token.pi_tail = 0.375;
  TokenRecord missing;
  missing.missing = true;
  record.tokens = {token, missing};
  const ResponseRecord back = ResponseFromJson(ParseJson(ToJson(record).dump(), "line"), "line");
  EXPECT_EQ(back.step, 3);
  EXPECT_EQ(back.data_source, "sort");
  EXPECT_EQ(back.reward, 1.5);
  EXPECT_EQ(back.advantage, -0.5);
  EXPECT_EQ(back.finish, "length");
  EXPECT_EQ(back.rule, "proximity=kl");
  EXPECT_EQ(back.delta, 0.25);
  ASSERT_EQ(back.tokens.size(), 2u);
  const TokenRecord& t = back.tokens[0];
  EXPECT_EQ(t.id, 9);
  EXPECT_EQ(t.ratio, 1.5);
  EXPECT_EQ(t.divergence, 0.25);
  EXPECT_EQ(t.direction, -0.125);
  EXPECT_EQ(t.local, 0.5);
  EXPECT_EQ(t.global, -0.625);
  EXPECT_EQ(t.advantage, -2);
  EXPECT_TRUE(!t.keep && t.outside && t.disagree && !t.missing);
  EXPECT_EQ(t.support[0].mu, 0.25);
  EXPECT_EQ(t.mu_tail, 0.75);
  EXPECT_EQ(t.pi_tail, 0.375);
  EXPECT_TRUE(back.tokens[1].missing && back.tokens[1].keep && !back.tokens[1].outside);
}

}  // namespace
}  // namespace augur
