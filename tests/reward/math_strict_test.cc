#include "reward/math_strict.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "reward/math_form.h"

namespace augur {
namespace {

struct Case {
  const char* answer;
  const char* ground_truth;
};

constexpr Case kIntegers[] = {{"42", "42"},
                              {"42.", "42"},
                              {"**42**", "42"},
                              {"**42.**", "42"},
                              {"42.0", "42"},
                              {"42.00", "42"},
                              {"042", "42"},
                              {"+42", "42"},
                              {"$42$", "42"},
                              {"$42.$", "42"},
                              {"$$42$$", "42"},
                              {"\\(42\\)", "42"},
                              {"\\[ 42 \\]", "42"},
                              {"`42`", "42"},
                              {"\"42\"", "42"},
                              {"\\text{42}", "42"},
                              {"\\mathbf{42}", "42"},
                              {"\\boxed{42}", "42"},
                              {"\\boxed {42}", "42"},
                              {"x = 42", "42"},
                              {"$x=42$", "42"},
                              {"f(x) = 42", "42"},
                              {"x_{1} = 42", "42"},
                              {"\uFF14\uFF12", "42"},
                              {"\u00A042\u2003", "42"},
                              {"\u221242", "-42"},
                              {"\u201342", "-42"},
                              {"\uFF0D42", "-42"},
                              {"- 42", "-42"},
                              {"-0", "0"},
                              {"-042.0", "-42"},
                              {"123456789012345678901234567890.0", "123456789012345678901234567890"}};

constexpr Case kThousands[] = {
    {"1,234", "1234"},   {"1,234,567.50", "1234567.5"}, {"1{,}234", "1234"},  {"1,\\!234", "1234"},
    {"1\\,234", "1234"}, {"1\u202F234", "1234"},        {"\\$1,234", "1234"}, {"$1,234", "1234"},
    {"-1,234", "-1234"}};

constexpr Case kFractions[] = {{"1/2", "\\frac{1}{2}"},
                               {"0.5", "\\frac{1}{2}"},
                               {".5", "0.5"},
                               {"\\dfrac{1}{2}", "\\frac{1}{2}"},
                               {"\\tfrac{1}{2}", "\\frac12"},
                               {"\\frac1{2}", "\\frac{1}2"},
                               {"\\frac 1 2", "\\frac{1}{2}"},
                               {"2/4", "1/2"},
                               {"-\\frac{1}{2}", "\\frac{-1}{2}"},
                               {"\\frac{1}{-2}", "-0.5"},
                               {"3/2", "1\\frac{1}{2}"},
                               {"1 1/2", "1\\frac12"},
                               {"\u22121/2", "-\\dfrac{1}{2}"},
                               {"\\frac{1,000}{3}", "1000/3"},
                               {"1\u20442", "0.5"},
                               {"6/3", "2"}};

constexpr Case kUnits[] = {{"50\\%", "50"},
                           {"50%", "50"},
                           {"50 percent", "50\\%"},
                           {"90^\\circ", "90"},
                           {"90^{\\circ}", "90^\\circ"},
                           {"90\u00B0", "90"},
                           {"90 degrees", "90^\\circ"},
                           {"5 \\text{ cm}", "5"},
                           {"5\\text{cm}", "5 cm"},
                           {"$5$ cm", "5"},
                           {"5\\,\\mathrm{cm}", "5"},
                           {"12 square units", "12"},
                           {"\\text{12 hours}", "12"},
                           {"3.50 dollars", "\\$3.50"}};

constexpr Case kExpressions[] = {
    {"\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"},
    {"( 3 , \\dfrac{\\pi}{2} )", "\\left( 3, \\frac{\\pi}{2} \\right)"},
    {"(0.5, 2.0)", "\\left(\\frac12,2\\right)"},
    {"2\u03C0", "2\\pi"},
    {"2 \\pi", "2\\pi"},
    {"\u03C0r^{2}", "\\pi r^2"},
    {"x^{2} + 1", "x^2+1"},
    {"\\sqrt2", "\\sqrt{2}"},
    {"2\\sqrt 3", "2\\sqrt{3}"},
    {"x \\leq 3", "x\\le 3"},
    {"(-\u221E, 3]", "(-\\infty,3]"},
    {"\\{1, 2\\}", "\\left\\{1,2\\right\\}"},
    {"1, -2.0", "1,-2"},
    {"y = 2x + 3", "2x+3"},
    {"= 42", "42"},
    {"3 \\text{ and } 5", "3,5"},
    {"3, \\text{ and } 5", "3, 5"},
    {"Evelyn", "\\text{Evelyn}"},
    {"evelyn.", "\\text{Evelyn}"},
    {"(C)", "\\text{(C)}"},
    {"C", "(C)"},
    {"\\textbf{(C)}", "C"},
    {"11_{2}", "11_2"},
    {"\\begin{pmatrix}1 & 2\\\\3 & 4\\end{pmatrix}", "\\begin{pmatrix} 1&2 \\\\ 3&4 \\end{pmatrix}"}};

constexpr Case kWrong[] = {{"4 2", "42"},
                           {"4\\ 2", "42"},
                           {"4\\,2", "42"},
                           {"$4$ $2$", "42"},
                           {"4$$2", "42"},
                           {"4 .2", "4.2"},
                           {"43", "42"},
                           {"-42", "42"},
                           {"42.1", "42"},
                           {"42 or 43", "42"},
                           {"42, 43", "42"},
                           {"1, 234", "1234"},
                           {"1,23", "123"},
                           {"1234,567", "1234567"},
                           {"0,123", "123"},
                           {"(1,234)", "1234"},
                           {"2x", "2"},
                           {"2 x", "2"},
                           {"2\\pi", "2"},
                           {"5 \\text{ cm}", "5\\text{ m}"},
                           {"50\\%", "0.5"},
                           {"0.33", "1/3"},
                           {"1/0", "1"},
                           {"1 3/2", "5/2"},
                           {"(2,1)", "(1,2)"},
                           {"[1,2)", "(1,2)"},
                           {"x = 41 = 42", "42"},
                           {"x+y=42", "42"},
                           {"AB", "ab"},
                           {"12345678901234567890123", "12345678901234567890124"},
                           {"", "42"},
                           {"", ""},
                           {"the answer is 42", "42"},
                           {"forty-two", "42"},
                           {"\\sqrt{42}", "42"},
                           {"42!", "42"},
                           {"4^2", "42"},
                           {"4\\\\2", "42"},
                           {"6*7", "42"},
                           {"\\frac{42}{", "42"},
                           {"42 million", "42"},
                           {"42 apples or so", "42"}};

// However the response marks it, and the other way round.
void ExpectSame(std::span<const Case> cases) {
  for (const Case& c : cases) {
    const std::string answer = c.answer, truth = c.ground_truth;
    for (const std::string& response :
         {"Answer: " + answer, "Thus\n**Answer:** " + answer + "\n", "So \\boxed{" + answer + "}.", answer,
          "Answer: 1\n\nNo, wait.\n\nFINAL ANSWER\uFF1A\n" + answer}) {
      EXPECT_EQ(ScoreMathStrict(response, truth), 1.0) << response << " for " << truth;
    }
    EXPECT_EQ(ScoreMathStrict("Answer: " + truth, truth), 1.0) << truth;
    EXPECT_EQ(ScoreMathStrict("Answer: " + truth, answer), 1.0) << truth << " for " << answer;
  }
}

TEST(MathStrict, AcceptsEverySpellingOfAnInteger) { ExpectSame(kIntegers); }
TEST(MathStrict, AcceptsThousandsSeparators) { ExpectSame(kThousands); }
TEST(MathStrict, AcceptsEverySpellingOfAFraction) { ExpectSame(kFractions); }
TEST(MathStrict, AcceptsANumberWithOrWithoutItsUnit) { ExpectSame(kUnits); }
TEST(MathStrict, AcceptsLatexThatLooksTheSameOnPaper) { ExpectSame(kExpressions); }

TEST(MathStrict, RejectsOtherAnswers) {
  for (const auto& [answer, truth] : kWrong) {
    EXPECT_EQ(ScoreMathStrict(std::string("Answer: ") + answer, truth), 0.0) << answer << " for " << truth;
    EXPECT_EQ(ScoreMathStrict(fmt::format("\\boxed{{{}}}", answer), truth), 0.0)
        << answer << " for " << truth;
  }
}

TEST(MathStrict, TakesTheLastAnswerThatIsComplete) {
  EXPECT_EQ(ScoreMathStrict("\\boxed{41} and then Answer: 42", "42"), 1.0);
  EXPECT_EQ(ScoreMathStrict("Answer: 41\nso \\boxed{42}", "42"), 1.0);
  EXPECT_EQ(ScoreMathStrict("Answer: 42\nso \\boxed{41}", "42"), 0.0);
  EXPECT_EQ(ScoreMathStrict("\\boxed{42} ... \\boxed{4", "42"), 1.0);
  EXPECT_EQ(ScoreMathStrict("\\boxed{\\boxed{42}}", "42"), 1.0);
  EXPECT_EQ(ScoreMathStrict("\\boxed{Answer: 42}", "42"), 1.0);
  EXPECT_EQ(ScoreMathStrict("Answer: 42\n\nAnswer:", "42"), 1.0);
  EXPECT_EQ(ScoreMathStrict("Answer:\n$$\n42\n$$\nDone.", "42"), 1.0);
  EXPECT_EQ(ScoreMathStrict("Answer:\n\\[\n42.\n\\]", "42"), 1.0);
  EXPECT_EQ(ScoreMathStrict("Answer: 42" + std::string(5000, ' ') + "\n" + std::string(5000, 'x'), "42"),
            1.0);
}

TEST(MathStrict, FindsNothingWhereNothingIsMarked) {
  EXPECT_EQ(ScoreMathStrict("We get\n42", "42"), 0.0);
  EXPECT_EQ(ScoreMathStrict("I think it is 42", "42"), 0.0);
  EXPECT_EQ(ScoreMathStrict("", "42"), 0.0);
  EXPECT_EQ(ScoreMathStrict("\\boxed{42", "42"), 0.0) << "cut off: the whole may have been 421";
  EXPECT_EQ(ScoreMathStrict("Answer: 42}", "42"), 0.0);
}

TEST(MathStrict, HasNoFormForAnAnswerPastTheLimit) {
  const std::string longest(kLongestAnswer, '7');
  EXPECT_EQ(ScoreMathStrict("Answer: " + longest, longest), 1.0);
  EXPECT_EQ(ScoreMathStrict("Answer: " + longest + "7", longest + "7"), 0.0);
}

}  // namespace
}  // namespace augur
