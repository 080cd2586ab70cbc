#include <gtest/gtest.h>

#include <fstream>

#include "metrics/token_record.h"
#include "report/viewer_tokens.h"

namespace augur {
namespace {

class ViewerFieldsTest : public testing::Test {
 protected:
  ViewerFieldsTest() {
    std::filesystem::remove_all(run_);
    std::filesystem::create_directories(run_);
  }
  ~ViewerFieldsTest() override { std::filesystem::remove_all(run_); }

  // A response of two tokens, the second of which is outside the trust region.
  void Append(int64_t step, const std::string& prompt) const {
    ResponseRecord record{step, "sort", prompt, "1 2", 0.5, -1.5, "eos", "clip", 0.15, {}};
    TokenRecord token;
    token.id = 7;
    token.text = "a";
    token.support = {{7, "a", 0.25, 0.5}, {8, "b", 0.125, 0.0625}};
    token.ratio = 2;
    token.divergence = 0.1;
    token.direction = 0.2;
    token.local = 0.3;
    token.global = -0.1;
    token.advantage = -1.5;
    token.mu_tail = 0.625;
    token.pi_tail = 0.4375;
    record.tokens = {token, token};
    record.tokens[1].keep = false;
    record.tokens[1].outside = record.tokens[1].disagree = true;
    AppendTokenRecords(run_, std::vector{record});
  }
  static std::vector<std::string> Prompts(const Json& tokens) {
    std::vector<std::string> prompts;
    for (const Json& response : tokens["responses"]) prompts.push_back(response["prompt"]);
    return prompts;
  }

  const std::filesystem::path run_ = std::filesystem::path(testing::TempDir()) / "augur_viewer_fields";
};

using PromptTexts = std::vector<std::string>;

TEST_F(ViewerFieldsTest, EveryFieldOfATokenHasItsPlace) {
  Append(3, "p");
  Notes notes;
  const Json tokens = ReadViewerTokens(run_, 1 << 20, &notes);
  EXPECT_TRUE(notes.empty());
  EXPECT_EQ(tokens["recorded"], 1);
  EXPECT_EQ(tokens["vocabulary"], (Json{{"7", "a"}, {"8", "b"}}));
  const Json& response = tokens["responses"][0];
  EXPECT_EQ(response["step"], 3);
  EXPECT_EQ(response["source"], "sort");
  EXPECT_EQ(response["answer"], "1 2");
  EXPECT_EQ(response["reward"], 0.5);
  EXPECT_EQ(response["advantage"], -1.5);
  EXPECT_EQ(response["finish"], "eos");
  EXPECT_EQ(response["rule"], "clip");
  EXPECT_EQ(response["delta"], 0.15);
  EXPECT_EQ(response["length"], 2);
  const Json support = {7, 0.25, 0.5, 8, 0.125, 0.0625};
  EXPECT_EQ(response["tokens"][0], Json({7, 2.0, 0.1, 0.2, 0.3, -0.1, -1.5, 1, 0.625, 0.4375, support}));
  EXPECT_EQ(response["tokens"][1][7], 2 | 4);
}

TEST_F(ViewerFieldsTest, ASmallPageKeepsSupportsOfOutsideTokensAndDrawsResponses) {
  for (int i = 0; i < 40; ++i) Append(1 + i / 4, "p" + std::to_string(i));
  const size_t all = std::filesystem::file_size(run_ / kTokenRecordsFile);
  Notes notes;
  const Json tokens = ReadViewerTokens(run_, all / 8, &notes);
  EXPECT_EQ(tokens["whole_support"], false);
  EXPECT_EQ(tokens["recorded"], 40);
  const PromptTexts prompts = Prompts(tokens);
  EXPECT_GT(prompts.size(), 4u);
  EXPECT_LT(prompts.size(), 30u);
  EXPECT_LE(tokens["responses"].dump().size(), all / 8 + 500);
  EXPECT_TRUE(tokens["responses"][0]["tokens"][0][10].empty());
  EXPECT_EQ(tokens["responses"][0]["tokens"][1][10].size(), 6u);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[1].find(std::to_string(prompts.size()) + " of 40 recorded responses"), std::string::npos);
  for (size_t i = 1; i < prompts.size(); ++i)  // in the order of the file
    EXPECT_LT(std::stoi(prompts[i - 1].substr(1)), std::stoi(prompts[i].substr(1)));
}

TEST_F(ViewerFieldsTest, StepsThatWereRepeatedAreShownAsTheyWereLast) {
  for (const int64_t step : {1, 2, 3}) Append(step, "old" + std::to_string(step));
  for (const int64_t step : {2, 2, 4}) Append(step, "new" + std::to_string(step));
  Notes notes;
  EXPECT_EQ(Prompts(ReadViewerTokens(run_, 1 << 20, &notes)), (PromptTexts{"old1", "new2", "new2", "new4"}));
}

TEST_F(ViewerFieldsTest, AStepIsFoundByBisectionOrTheOneBefore) {
  EXPECT_TRUE(ReadTokensOfStep(run_, 1, 1 << 20).is_null());
  EXPECT_TRUE(RecordedSteps(run_, 10).empty());
  for (const int64_t step : {2, 2, 3, 5, 9, 9, 9}) Append(step, "p" + std::to_string(step));
  std::ofstream(run_ / kTokenRecordsFile, std::ios::app) << "{\"step\":10,\"tok";
  EXPECT_EQ(RecordedSteps(run_, 100), (std::vector<int64_t>{2, 3, 5, 9}));
  EXPECT_EQ(RecordedSteps(run_, 2), (std::vector<int64_t>{2, 5, 9}));
  EXPECT_TRUE(ReadTokensOfStep(run_, 1, 1 << 20).is_null());
  for (const auto& [step, prompts] : std::vector<std::pair<int64_t, PromptTexts>>{{2, {"p2", "p2"}},
                                                                                  {3, {"p3"}},
                                                                                  {4, {"p3"}},
                                                                                  {8, {"p5"}},
                                                                                  {9, {"p9", "p9", "p9"}},
                                                                                  {99, {"p9", "p9", "p9"}}}) {
    EXPECT_EQ(Prompts(ReadTokensOfStep(run_, step, 1 << 20)), prompts) << step;
  }
  const Json little = ReadTokensOfStep(run_, 9, 1);
  EXPECT_EQ(little["recorded"], 3);
  EXPECT_EQ(little["responses"].size(), 1u);
}

}  // namespace
}  // namespace augur
