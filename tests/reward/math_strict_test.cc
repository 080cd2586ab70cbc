#include "reward/math_strict.h"

#include <gtest/gtest.h>

#include "reward/math_form.h"

namespace augur {
namespace {

struct Case {
  std::string answer, ground_truth;
};

class SameAnswerTest : public testing::TestWithParam<Case> {};
class OtherAnswerTest : public testing::TestWithParam<Case> {};

TEST_P(SameAnswerTest, ScoresOneHoweverTheResponseMarksIt) {
  const auto& [answer, truth] = GetParam();
  for (const std::string& response :
       {"Answer: " + answer, "Thus\n**Answer:** " + answer + "\n", "So \\boxed{" + answer + "}.", answer,
        "Answer: 1\n\nNo, wait.\n\nFINAL ANSWER\uFF1A\n" + answer}) {
    EXPECT_EQ(ScoreMathStrict(response, truth), 1.0) << response << " for " << truth;
  }
  EXPECT_EQ(ScoreMathStrict("Answer: " + truth, truth), 1.0) << truth;
  EXPECT_EQ(ScoreMathStrict("Answer: " + truth, answer), 1.0) << "the other way round: " << answer;
}

TEST_P(OtherAnswerTest, ScoresZero) {
  const auto& [answer, truth] = GetParam();
  EXPECT_EQ(ScoreMathStrict("Answer: " + answer, truth), 0.0) << answer << " for " << truth;
  EXPECT_EQ(ScoreMathStrict("\\boxed{" + answer + "}", truth), 0.0) << answer << " for " << truth;
}

INSTANTIATE_TEST_SUITE_P(
    Integers, SameAnswerTest,
    testing::Values(Case{"42", "42"}, Case{"42.", "42"}, Case{"**42**", "42"}, Case{"**42.**", "42"},
                    Case{"42.0", "42"}, Case{"42.00", "42"}, Case{"042", "42"}, Case{"+42", "42"},
                    Case{"$42$", "42"}, Case{"$42.$", "42"}, Case{"$$42$$", "42"}, Case{"\\(42\\)", "42"},
                    Case{"\\[ 42 \\]", "42"}, Case{"`42`", "42"}, Case{"\"42\"", "42"},
                    Case{"\\text{42}", "42"}, Case{"\\mathbf{42}", "42"}, Case{"\\boxed{42}", "42"},
                    Case{"\\boxed {42}", "42"}, Case{"x = 42", "42"}, Case{"$x=42$", "42"},
                    Case{"f(x) = 42", "42"}, Case{"x_{1} = 42", "42"}, Case{"\uFF14\uFF12", "42"},
                    Case{"\u00A042\u2003", "42"}, Case{"\u221242", "-42"}, Case{"\u201342", "-42"},
                    Case{"\uFF0D42", "-42"}, Case{"- 42", "-42"}, Case{"-0", "0"}, Case{"-042.0", "-42"},
                    Case{"123456789012345678901234567890.0", "123456789012345678901234567890"}));

INSTANTIATE_TEST_SUITE_P(Thousands, SameAnswerTest,
                         testing::Values(Case{"1,234", "1234"}, Case{"1,234,567.50", "1234567.5"},
                                         Case{"1{,}234", "1234"}, Case{"1,\\!234", "1234"},
                                         Case{"1\\,234", "1234"}, Case{"1\u202F234", "1234"},
                                         Case{"\\$1,234", "1234"}, Case{"$1,234", "1234"},
                                         Case{"-1,234", "-1234"}));

INSTANTIATE_TEST_SUITE_P(Fractions, SameAnswerTest,
                         testing::Values(Case{"1/2", "\\frac{1}{2}"}, Case{"0.5", "\\frac{1}{2}"},
                                         Case{".5", "0.5"}, Case{"\\dfrac{1}{2}", "\\frac{1}{2}"},
                                         Case{"\\tfrac{1}{2}", "\\frac12"}, Case{"\\frac1{2}", "\\frac{1}2"},
                                         Case{"\\frac 1 2", "\\frac{1}{2}"}, Case{"2/4", "1/2"},
                                         Case{"-\\frac{1}{2}", "\\frac{-1}{2}"},
                                         Case{"\\frac{1}{-2}", "-0.5"}, Case{"3/2", "1\\frac{1}{2}"},
                                         Case{"1 1/2", "1\\frac12"}, Case{"\u22121/2", "-\\dfrac{1}{2}"},
                                         Case{"\\frac{1,000}{3}", "1000/3"}, Case{"1\u20442", "0.5"},
                                         Case{"6/3", "2"}));

INSTANTIATE_TEST_SUITE_P(Units, SameAnswerTest,
                         testing::Values(Case{"50\\%", "50"}, Case{"50%", "50"}, Case{"50 percent", "50\\%"},
                                         Case{"90^\\circ", "90"}, Case{"90^{\\circ}", "90^\\circ"},
                                         Case{"90\u00B0", "90"}, Case{"90 degrees", "90^\\circ"},
                                         Case{"5 \\text{ cm}", "5"}, Case{"5\\text{cm}", "5 cm"},
                                         Case{"$5$ cm", "5"}, Case{"5\\,\\mathrm{cm}", "5"},
                                         Case{"12 square units", "12"}, Case{"\\text{12 hours}", "12"},
                                         Case{"3.50 dollars", "\\$3.50"}));

INSTANTIATE_TEST_SUITE_P(
    Expressions, SameAnswerTest,
    testing::Values(Case{"\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"},
                    Case{"( 3 , \\dfrac{\\pi}{2} )", "\\left( 3, \\frac{\\pi}{2} \\right)"},
                    Case{"(0.5, 2.0)", "\\left(\\frac12,2\\right)"}, Case{"2\u03C0", "2\\pi"},
                    Case{"2 \\pi", "2\\pi"}, Case{"\u03C0r^{2}", "\\pi r^2"}, Case{"x^{2} + 1", "x^2+1"},
                    Case{"\\sqrt2", "\\sqrt{2}"}, Case{"2\\sqrt 3", "2\\sqrt{3}"},
                    Case{"x \\leq 3", "x\\le 3"}, Case{"(-\u221E, 3]", "(-\\infty,3]"},
                    Case{"\\{1, 2\\}", "\\left\\{1,2\\right\\}"}, Case{"1, -2.0", "1,-2"},
                    Case{"y = 2x + 3", "2x+3"}, Case{"= 42", "42"}, Case{"3 \\text{ and } 5", "3,5"},
                    Case{"3, \\text{ and } 5", "3, 5"}, Case{"Evelyn", "\\text{Evelyn}"},
                    Case{"evelyn.", "\\text{Evelyn}"}, Case{"(C)", "\\text{(C)}"}, Case{"C", "(C)"},
                    Case{"\\textbf{(C)}", "C"}, Case{"11_{2}", "11_2"},
                    Case{"\\begin{pmatrix}1 & 2\\\\3 & 4\\end{pmatrix}",
                         "\\begin{pmatrix} 1&2 \\\\ 3&4 \\end{pmatrix}"}));

INSTANTIATE_TEST_SUITE_P(
    Wrong, OtherAnswerTest,
    testing::Values(Case{"4 2", "42"}, Case{"4\\ 2", "42"}, Case{"4\\,2", "42"}, Case{"$4$ $2$", "42"},
                    Case{"4$$2", "42"}, Case{"4 .2", "4.2"}, Case{"43", "42"}, Case{"-42", "42"},
                    Case{"42.1", "42"}, Case{"42 or 43", "42"}, Case{"42, 43", "42"}, Case{"1, 234", "1234"},
                    Case{"1,23", "123"}, Case{"1234,567", "1234567"}, Case{"0,123", "123"},
                    Case{"(1,234)", "1234"}, Case{"2x", "2"}, Case{"2 x", "2"}, Case{"2\\pi", "2"},
                    Case{"5 \\text{ cm}", "5\\text{ m}"}, Case{"50\\%", "0.5"}, Case{"0.33", "1/3"},
                    Case{"1/0", "1"}, Case{"1 3/2", "5/2"}, Case{"(2,1)", "(1,2)"}, Case{"[1,2)", "(1,2)"},
                    Case{"x = 41 = 42", "42"}, Case{"x+y=42", "42"}, Case{"AB", "ab"},
                    Case{"12345678901234567890123", "12345678901234567890124"}, Case{"", "42"}, Case{"", ""},
                    Case{"the answer is 42", "42"}, Case{"forty-two", "42"}, Case{"\\sqrt{42}", "42"},
                    Case{"42!", "42"}, Case{"4^2", "42"}, Case{"4\\\\2", "42"}, Case{"6*7", "42"},
                    Case{"\\frac{42}{", "42"}, Case{"42 million", "42"}, Case{"42 apples or so", "42"}));

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
