#include "reward/math_dapo.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/utf8.h"
#include "reward/python_text.h"

namespace augur {
namespace {

constexpr size_t kResponseTail = 300;
constexpr size_t kBoxedTail = 100;
constexpr std::string_view kNoAnswer = "[INVALID]";
constexpr auto kNone = std::string_view::npos;

constexpr std::pair<std::string_view, std::string_view> kSubstitutions[] = {
    {"an ", ""}, {"a ", ""},       {".$", "$"},           {"\\$", ""},          {"\\ ", ""},
    {" ", ""},   {"mbox", "text"}, {",\\text{and}", ","}, {"\\text{and}", ","}, {"\\text{m}", "\\text{}"}};

constexpr std::string_view kRemoved[] = {
    "square",     "ways",       "integers",  "dollars",      "mph",
    "inches",     "hours",      "km",        "units",        "\\ldots",
    "sue",        "points",     "feet",      "minutes",      "digits",
    "cents",      "degrees",    "cm",        "gm",           "pounds",
    "meters",     "meals",      "edges",     "students",     "childrentickets",
    "multiples",  "\\text{s}",  "\\text{.}", "\\text{\ns}",  "\\text{}^2",
    "\\text{}^3", "\\text{\n}", "\\text{}",  "\\mathrm{th}", "^\\circ",
    "^{\\circ}",  "\\;",        ",\\!",      "{,}",          "\"",
    "\\dots"};

// End of the word "answer" at `offset` without regard to case, or kNone. Python folds U+017F to s.
size_t EndOfAnswerWord(std::string_view text, size_t offset) {
  for (const char letter : std::string_view("answer")) {
    if (letter == 's' && text.substr(offset, 2) == "\u017F") {
      offset += 2;
    } else if (offset < text.size() && (text[offset] | 0x20) == letter) {
      ++offset;
    } else {
      return kNone;
    }
  }
  return offset;
}

// What ([^\n]+) captures after `\s*` at `offset`: the white space is given back from its end where nothing
// else is left to capture.
std::optional<std::string_view> CaptureLine(std::string_view text, size_t offset) {
  size_t start = SkipPythonSpace(text, offset);
  if (start == text.size()) {
    start = text.find_last_not_of('\n');
    while (start > offset && start < text.size() && (text[start] & 0xC0) == 0x80) --start;
    if (start < offset || start == kNone) return std::nullopt;
  }
  return text.substr(start, text.find('\n', start) - start);
}

// The last of re.findall(r"(?i)Answer\s*:\s*([^\n]+)", text).
std::optional<std::string_view> LastAnswerLine(std::string_view text) {
  std::optional<std::string_view> last;
  for (size_t i = 0; i < text.size();) {
    const size_t word_end = EndOfAnswerWord(text, i++);
    if (word_end == kNone) continue;
    const size_t colon = SkipPythonSpace(text, word_end);
    if (colon == text.size() || text[colon] != ':') continue;
    if (const auto line = CaptureLine(text, colon + 1)) {
      last = line;
      i = static_cast<size_t>(line->data() + line->size() - text.data());
    }
  }
  return last;
}

// re.sub(r"(.*?)(\$)(.*?)(\$)(.*)", "$\\3$", text): a line with two dollars keeps what stands between the
// first two.
std::string KeepFirstMath(std::string_view text) {
  std::string out;
  while (true) {
    const size_t line_end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, line_end);
    const size_t open = line.find('$');
    const size_t close = open == kNone ? kNone : line.find('$', open + 1);
    out += close == kNone ? line : line.substr(open, close + 1 - open);
    if (line_end == text.size()) return out;
    out += '\n';
    text.remove_prefix(line_end + 1);
  }
}

// re.sub(r"(\\NAME\{)(.*?)(\})", "\\2", text), where `opening` is "\\NAME{".
std::string Unwrap(std::string_view text, std::string_view opening) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(opening); at != kNone; at = text.find(opening, done)) {
    const size_t content = at + opening.size();
    const size_t end = text.find_first_of("}\n", content);
    if (end == kNone) break;
    const bool closed = text[end] == '}';
    out += text.substr(done, (closed ? at : end) - done);
    if (closed) out += text.substr(content, end - content);
    done = closed ? end + 1 : end;
  }
  return out.append(text, done);
}

// re.sub(r"(\\boxed\{)(.*)(\})", "\\2", text): up to the last brace of the line.
std::string UnwrapBoxed(std::string_view text) {
  constexpr std::string_view kOpening = "\\boxed{";
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(kOpening); at != kNone; at = text.find(kOpening, done)) {
    const size_t content = at + kOpening.size();
    const size_t line_end = std::min(text.find('\n', content), text.size());
    const size_t close = text.substr(0, line_end).rfind('}');
    if (close == kNone || close < content) {
      out += text.substr(done, line_end - done);
      done = line_end;
    } else {
      out += text.substr(done, at - done);
      out += text.substr(content, close - content);
      done = close + 1;
    }
  }
  return out.append(text, done);
}

// re.sub(r"(frac)([^{])(.)", "frac{\\2}{\\3}", text) and, with one argument, re.sub(r"(sqrt)([^{])",
// "sqrt{\\2}", text).
std::string BraceArguments(std::string_view text, std::string_view command, int arguments) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(command); at != kNone; at = text.find(command, done)) {
    const size_t first = at + command.size();
    out += text.substr(done, first - done);
    done = first;
    if (first == text.size() || text[first] == '{') continue;
    size_t second = first;
    NextCodePoint(text, &second);
    size_t end = second;
    if (arguments == 2) {
      if (second == text.size() || text[second] == '\n') continue;
      NextCodePoint(text, &end);
    }
    out.append("{").append(text, first, second - first).append("}");
    if (arguments == 2) out.append("{").append(text, second, end - second).append("}");
    done = end;
  }
  return out.append(text, done);
}

bool IsDigits(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (!IsPythonDigit(NextCodePoint(text, &i))) return false;
  }
  return !text.empty();
}

// verl's normalize_final_answer, step by step.
std::string Normalise(std::string_view answer) {
  std::string text(answer.substr(answer.rfind('=') + 1));
  for (const auto& [before, after] : kSubstitutions) text = ReplaceAll(text, before, after);
  for (const std::string_view expression : kRemoved) text = ReplaceAll(text, expression, "");
  text = KeepFirstMath(text);
  for (const std::string_view opening : {"\\text{", "\\textbf{", "\\overline{"}) text = Unwrap(text, opening);
  text = UnwrapBoxed(text);
  text = BraceArguments(text, "frac", 2);
  text = BraceArguments(text, "sqrt", 1);
  text = ReplaceAll(text, "$", "");
  if (std::string digits = ReplaceAll(text, ",", ""); IsDigits(digits)) text = std::move(digits);
  return std::string(PythonStrip(text));
}

// The content of the last \boxed{...}; nothing if its braces do not close, even where an earlier one does.
std::optional<std::string_view> LastBoxed(std::string_view text) {
  constexpr std::string_view kOpening = "\\boxed{";
  const size_t at = text.rfind(kOpening);
  if (at == kNone) return std::nullopt;
  const size_t content = at + kOpening.size();
  int open = 1;
  for (size_t i = content; i < text.size(); ++i) {
    if (text[i] == '{') ++open;
    if (text[i] == '}' && --open == 0) return text.substr(content, i - content);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string_view> MathDapoBoxedAnswer(std::string_view response) {
  return LastBoxed(LastCodePoints(response, kBoxedTail));
}

std::optional<std::string_view> MathDapoAnswer(std::string_view response) {
  const auto line = LastAnswerLine(LastCodePoints(response, kResponseTail));
  return line ? line : MathDapoBoxedAnswer(response);
}

double ScoreMathDapoBoxed(std::string_view response, std::string_view ground_truth) {
  return MathDapoBoxedAnswer(response) == ground_truth ? 1.0 : -1.0;
}

double ScoreMathDapo(std::string_view response, std::string_view ground_truth) {
  response = LastCodePoints(response, kResponseTail);
  const std::string predicted = Normalise(LastAnswerLine(response).value_or(kNoAnswer));
  if (predicted == kNoAnswer && MathDapoBoxedAnswer(response)) {
    return ScoreMathDapoBoxed(response, ground_truth);
  }
  return predicted == Normalise(ground_truth) ? 1.0 : -1.0;
}

}  // namespace augur
