#include "data/task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"
#include "data/prompt_set.h"

namespace augur {
namespace {

std::vector<int> Numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<int> numbers;
  for (int n; in >> n;) numbers.push_back(n);
  return numbers;
}

TEST(Task, SortAsksForDifferentNumbersAndAnswersThemInRisingOrder) {
  const std::vector<Prompt> prompts = MakeTask("task:sort:count=200:seed=4");
  ASSERT_EQ(prompts.size(), 200u);
  std::set<std::string> texts;
  for (const Prompt& prompt : prompts) {
    EXPECT_TRUE(prompt.text.ends_with(" ="));
    std::vector<int> asked = Numbers(prompt.text);
    ASSERT_EQ(asked.size(), 10u);
    std::ranges::sort(asked);
    EXPECT_EQ(Numbers(prompt.ground_truth.get<std::string>()), asked);
    EXPECT_EQ(std::set<int>(asked.begin(), asked.end()).size(), 10u);
    EXPECT_GE(asked.front(), 0);
    EXPECT_LE(asked.back(), 255);
    texts.insert(prompt.text);
  }
  EXPECT_EQ(texts.size(), 200u);
}

TEST(Task, ArithmeticAsksForSumsAndDifferencesAndAnswersThem) {
  const std::vector<Prompt> prompts = MakeTask("task:arithmetic:count=200:terms=4:largest=12");
  ASSERT_EQ(prompts.size(), 200u);
  int minus = 0, largest = 0;
  for (const Prompt& prompt : prompts) {
    EXPECT_EQ(prompt.data_source, "arithmetic");
    const std::string begin = "What is ",
                      sum = prompt.text.substr(begin.size(), prompt.text.find('?') - begin.size());
    std::istringstream in(sum);
    int value = 0, term = 0, terms = 0;
    char sign = '+';
    do {
      in >> term;
      value += sign == '-' ? -term : term;
      minus += sign == '-';
      largest = std::max(largest, term);
      ++terms;
    } while (in >> sign);
    EXPECT_EQ(terms, 4) << prompt.text;
    EXPECT_EQ(prompt.ground_truth, std::to_string(value)) << prompt.text;
  }
  EXPECT_EQ(largest, 12);
  EXPECT_GT(minus, 200);
  EXPECT_LT(minus, 400);
}

TEST(Task, IsAPureFunctionOfItsName) {
  const auto a = MakeTask("task:sort:count=5:seed=1"), b = MakeTask("task:sort:count=9:seed=1");
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].text, b[i].text);
  EXPECT_NE(a[0].text, MakeTask("task:sort:count=5:seed=2")[0].text);
}

TEST(Task, StandsInThePlaceOfAFile) {
  const std::filesystem::path names[] = {"task:sort:count=3:numbers=2:largest=1", "task:sort:count=2"};
  const auto prompts = ReadPrompts(names, {});
  ASSERT_EQ(prompts.size(), 5u);
  EXPECT_EQ(prompts[4].index, 4u);
  EXPECT_EQ(prompts[4].Where(), "task:sort:count=2:2");
}

TEST(Task, RefusesWhatItDoesNotKnow) {
  for (const char* name :
       {"task:sorting", "task:", "task:sort:numbrs=3", "task:sort:count=0", "task:sort:count",
        "task:sort:count=x", "task:sort:numbers=300", "task:sort:count=99999999999999999999"}) {
    EXPECT_THROW(MakeTask(name), Error) << name;
  }
}

}  // namespace
}  // namespace augur
