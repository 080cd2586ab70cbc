#include "report/viewer_tokens.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "metrics/token_record.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

ResponseRecord Response(int64_t step, size_t tokens = 2) {
  ResponseRecord response;
  response.step = step;
  response.data_source = "sort";
  response.prompt = "p";
  response.reward = 1;
  for (size_t i = 0; i < tokens; ++i) {
    TokenRecord token;
    token.id = static_cast<int32_t>(i);
    token.text = "t" + std::to_string(i);
    token.ratio = 1.5;
    token.outside = i == 0;
    token.keep = i != 0;
    token.disagree = i == 1;
    token.support = {{token.id, token.text, 0.5, 0.75}, {99, "x", 0.25, 0.125}};
    response.tokens.push_back(token);
  }
  return response;
}

class ViewerTokens : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(run_);
    fs::create_directories(run_);
  }
  void Append(const std::vector<ResponseRecord>& responses) { AppendTokenRecords(run_, responses); }

  const fs::path run_ =
      fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
  Notes notes_;
};

TEST_F(ViewerTokens, HoldsEachTokensDecisionAndDistributions) {
  Append({Response(3)});
  const Json shown = ReadViewerTokens(run_, 1 << 20, &notes_);
  EXPECT_TRUE(notes_.empty());
  EXPECT_EQ(shown["vocabulary"], Json::parse(R"({"0": "t0", "1": "t1", "99": "x"})"));
  const Json tokens = shown["responses"][0]["tokens"];
  EXPECT_EQ(tokens[0],
            Json::parse("[0, 1.5, 0.0, 0.0, 0.0, 0.0, 0.0, 2, 0.0, 0.0, [0, 0.5, 0.75, 99, 0.25, 0.125]]"));
  EXPECT_EQ(tokens[1][7], 5);  // kept, criteria disagree
  EXPECT_EQ(shown["responses"][0]["length"], 2);
  EXPECT_EQ(shown["recorded"], 1);
}

TEST_F(ViewerTokens, FirstTheSupportsInsideGoThenResponses) {
  Append(std::vector<ResponseRecord>(100, Response(1, 64)));
  const size_t size = fs::file_size(run_ / kTokenRecordsFile);
  const Json without = ReadViewerTokens(run_, size / 2, &notes_);
  EXPECT_EQ(without["responses"].size(), 100u);
  EXPECT_EQ(without["responses"][0]["tokens"][0][10].size(), 6u);
  EXPECT_EQ(without["responses"][0]["tokens"][1][10].size(), 0u);
  EXPECT_EQ(notes_.size(), 1u);
  const Json some = ReadViewerTokens(run_, size / 10, &notes_);
  EXPECT_LT(some["responses"].size(), 60u);
  EXPECT_GT(some["responses"].size(), 5u);
  EXPECT_EQ(some["recorded"], 100);
  EXPECT_NE(notes_.back().find(fmt::format("{} of 100 recorded", some["responses"].size())),
            std::string::npos);
}

TEST_F(ViewerTokens, AResumedRunsResponsesCountOnce) {
  Append({Response(1), Response(1), Response(2), Response(3), Response(2)});
  const Json shown = ReadViewerTokens(run_, 1 << 20, &notes_);
  std::vector<int64_t> steps;
  for (const Json& response : shown["responses"]) steps.push_back(response["step"].get<int64_t>());
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 1, 2}));
}

TEST_F(ViewerTokens, AStepIsFoundAmongMany) {
  for (int64_t step = 10; step <= 500; step += 10) Append({Response(step), Response(step)});
  const auto steps_at = [&](int64_t step) {
    const Json shown = ReadTokensOfStep(run_, step, 1 << 20);
    return shown.is_null() ? Json() : Json{shown["responses"].size(), shown["responses"][0]["step"]};
  };
  EXPECT_TRUE(steps_at(9).is_null());
  for (int64_t step = 10; step <= 509; ++step) {
    EXPECT_EQ(steps_at(step), (Json{2, std::min<int64_t>(step / 10 * 10, 500)})) << step;
  }
  const std::vector<int64_t> all = RecordedSteps(run_, 1000);
  EXPECT_EQ(all.size(), 50u);
  const std::vector<int64_t> some = RecordedSteps(run_, 7);
  EXPECT_LE(some.size(), 9u);
  EXPECT_EQ(some.front(), 10);
  EXPECT_EQ(some.back(), 500);
}

TEST_F(ViewerTokens, OneStepsResponsesBeyondTheBudgetAreCounted) {
  Append(std::vector<ResponseRecord>(20, Response(1, 64)));
  const Json shown = ReadTokensOfStep(run_, 1, 20000);
  EXPECT_LT(shown["responses"].size(), 20u);
  EXPECT_GE(shown["responses"].size(), 1u);
  EXPECT_EQ(shown["recorded"], 20);
}

}  // namespace
}  // namespace augur
