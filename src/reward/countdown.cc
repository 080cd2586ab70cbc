#include "reward/countdown.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "reward/final_answer.h"
#include "reward/python_text.h"
#include "reward/rational.h"

namespace augur {
namespace {

constexpr size_t kLongestExpression = 4096;
constexpr std::string_view kShape = R"(write {"numbers": [3, 5, 7], "target": 8})";

struct Puzzle {
  std::vector<int64_t> numbers;  // in rising order
  int64_t target = 0;
};

std::optional<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int64_t RequireInteger(const Json& value, std::string_view what) {
  std::optional<int64_t> number;
  if (value.is_string()) number = ParseInteger(value.get_ref<const std::string&>());
  if (value.is_number_integer()) number = ParseInteger(value.dump());
  if (value.is_number_float()) {  // 24.0, as data frames write integers
    const double real = value.get<double>();
    if (std::abs(real) < 0x1p53 && real == std::trunc(real)) number = static_cast<int64_t>(real);
  }
  if (!number) throw Error("answer", fmt::format("countdown's {} is not an integer", what), kShape);
  return *number;
}

Puzzle ParsePuzzle(const Json& answer) {
  if (answer.is_string()) {
    const Json inner = ParseJson(answer.get_ref<const std::string&>(), "answer");
    if (inner.is_object()) return ParsePuzzle(inner);
  }
  if (!answer.is_object() || !answer.contains("numbers") || !answer["numbers"].is_array()) {
    throw Error("answer", "countdown needs the numbers and the target", kShape);
  }
  Puzzle puzzle;
  puzzle.target = RequireInteger(RequireKey(answer, "target", "answer"), "target");
  for (const Json& number : answer["numbers"]) {
    puzzle.numbers.push_back(RequireInteger(number, "number"));
    if (puzzle.numbers.back() < 0) throw Error("answer", "countdown's numbers cannot be negative", kShape);
  }
  std::ranges::sort(puzzle.numbers);
  return puzzle;
}

std::string_view FindExpression(std::string_view response) {
  constexpr std::string_view kOpen = "<answer>", kClose = "</answer>";
  if (const size_t close = response.rfind(kClose); close != std::string_view::npos) {
    const size_t open = response.substr(0, close).rfind(kOpen);
    if (open != std::string_view::npos) {
      return response.substr(open + kOpen.size(), close - open - kOpen.size());
    }
  }
  const auto marked = FinalAnswer(response);
  return marked ? *marked : LastLine(response);
}

// The expression with one ASCII character an operator and no markup.
std::string PlainExpression(std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> kSpellings[] = {
      {"\\times", "*"}, {"\\cdot", "*"}, {"\\div", "/"},  {"\\left", ""}, {"\\right", ""}, {"\\(", ""},
      {"\\)", ""},      {"\\[", ""},     {"\\]", ""},     {"$", ""},      {"\u00D7", "*"}, {"\u00B7", "*"},
      {"\u22C5", "*"},  {"\u00F7", "/"}, {"\u2212", "-"}, {"\u2013", "-"}};
  std::string plain(text);
  for (const auto& [from, to] : kSpellings) plain = ReplaceAll(plain, from, to);
  constexpr std::string_view kEdges = "*_`\" \t\r\n";
  const size_t begin = std::min(plain.find_first_not_of(kEdges), plain.size());
  const size_t end = plain.find_last_not_of(std::string(kEdges) + ".,;") + 1;
  return begin < end ? plain.substr(begin, end - begin) : std::string();
}

// An operator-precedence evaluator with stacks of its own, so that depth costs memory in proportion to the
// text and never the machine's stack.
class Evaluator {
 public:
  // The value of the whole text, or nothing if it is not an expression or leaves exact range.
  std::optional<Rational> Evaluate(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
      const char c = text[i];
      if (IsSpace(c)) {
        ++i;
      } else if (c >= '0' && c <= '9') {
        const size_t end = std::min(text.find_first_not_of("0123456789", i), text.size());
        if (!PushNumber(text.substr(i, end - i))) return std::nullopt;
        i = end;
      } else {
        if (!PushSymbol(c)) return std::nullopt;
        ++i;
      }
    }
    if (expects_value_ || !ApplyDownTo(0)) return std::nullopt;
    if (!operators_.empty() || values_.size() != 1) return std::nullopt;
    return values_.front();
  }

  const std::vector<int64_t>& literals() const { return literals_; }

 private:
  static bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

  // '~' is negation.
  static int Precedence(char op) { return op == '(' ? -1 : op == '+' || op == '-' ? 1 : op == '~' ? 3 : 2; }

  bool PushNumber(std::string_view digits) {
    const auto value = ParseInteger(digits);
    if (!expects_value_ || !value) return false;
    literals_.push_back(*value);
    values_.push_back({*value, 1});
    expects_value_ = false;
    return true;
  }

  bool PushSymbol(char c) {
    if (expects_value_) {
      if (c != '(' && c != '-' && c != '+') return false;
      if (c != '+') operators_.push_back(c == '-' ? '~' : '(');
      return true;
    }
    if (c == ')') {
      if (!ApplyDownTo(0) || operators_.empty()) return false;
      operators_.pop_back();
      return true;
    }
    if (std::string_view("+-*/").find(c) == std::string_view::npos) return false;
    if (!ApplyDownTo(Precedence(c))) return false;
    operators_.push_back(c);
    expects_value_ = true;
    return true;
  }

  // Applies waiting operators that bind at least as tightly as `precedence`, up to an open parenthesis.
  bool ApplyDownTo(int precedence) {
    while (!operators_.empty() && Precedence(operators_.back()) >= precedence) {
      if (!Apply(operators_.back())) return false;
      operators_.pop_back();
    }
    return true;
  }

  bool Apply(char op) {
    const Rational right = values_.back();
    if (op == '~') {
      values_.back().numerator = -right.numerator;
      return true;
    }
    values_.pop_back();
    const Rational left = values_.back();
    const auto result = op == '+'   ? Add(left, right)
                        : op == '-' ? Subtract(left, right)
                        : op == '*' ? Multiply(left, right)
                                    : Divide(left, right);
    if (!result) return false;
    values_.back() = *result;
    return true;
  }

  bool expects_value_ = true;
  std::vector<char> operators_;
  std::vector<Rational> values_;
  std::vector<int64_t> literals_;
};

}  // namespace

std::optional<std::string> CountdownAnswer(std::string_view response) {
  const std::string_view found = FindExpression(response);
  if (found.size() > kLongestExpression) return std::nullopt;
  const std::string plain = PlainExpression(found);
  std::string expression = plain.substr(0, plain.find('='));
  if (!Evaluator().Evaluate(expression)) return std::nullopt;
  std::erase_if(expression, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; });
  return expression;
}

double ScoreCountdown(std::string_view response, const Json& answer) {
  const Puzzle puzzle = ParsePuzzle(answer);
  const std::string_view found = FindExpression(response);
  if (found.size() > kLongestExpression) return 0.0;
  const std::string expression = PlainExpression(found);
  const std::optional<Rational> target = Rational{puzzle.target, 1};
  const size_t equals = expression.find('=');
  if (equals != std::string::npos && Evaluator().Evaluate(expression.substr(equals + 1)) != target)
    return 0.0;
  Evaluator left;
  if (left.Evaluate(expression.substr(0, equals)) != target) return 0.0;
  std::vector<int64_t> used = left.literals();
  std::ranges::sort(used);
  return used == puzzle.numbers ? 1.0 : 0.0;
}

}  // namespace augur
