#include "reward/final_answer.h"

#include <algorithm>
#include <vector>

#include "reward/python_text.h"

namespace augur {
namespace {

constexpr auto kNoPosition = std::string_view::npos;

struct Part {
  size_t begin, end;
};

// The box that opens last among those that close. A stack of open braces stands in for recursion.
std::optional<Part> LastClosedBox(std::string_view text) {
  std::vector<size_t> open;
  std::optional<Part> last;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '{' || text[i + 1] == '}')) {
      ++i;
    } else if (text[i] == '{') {
      open.push_back(i);
    } else if (text[i] == '}' && !open.empty()) {
      const size_t content = open.back() + 1;
      const bool boxed = text.substr(0, open.back()).ends_with("\\boxed");
      if (boxed && (!last || content > last->begin)) last = Part{content, i};
      open.pop_back();
    }
  }
  return last;
}

size_t SkipEmphasis(std::string_view text, size_t offset) {
  while (true) {
    const size_t next = SkipPythonSpace(text, std::min(text.find_first_not_of("*_`", offset), text.size()));
    if (next == offset) return offset;
    offset = next;
  }
}

// Past the colon of "answer:" at `offset`, or kNoPosition.
size_t EndOfMark(std::string_view text, size_t offset) {
  for (const char letter : std::string_view("answer")) {
    if (offset == text.size() || (text[offset] | 0x20) != letter) return kNoPosition;
    ++offset;
  }
  offset = SkipEmphasis(text, offset);
  for (const std::string_view colon : {":", "\uFF1A"}) {
    if (text.substr(offset, colon.size()) == colon) return offset + colon.size();
  }
  return kNoPosition;
}

// The line at `begin`, or the whole formula where one displayed over several lines begins there.
Part LineOrFormula(std::string_view text, size_t begin) {
  size_t end = kNoPosition;
  if (text.substr(begin).starts_with("$$")) end = text.find("$$", begin + 2);
  if (text.substr(begin).starts_with("\\[")) end = text.find("\\]", begin + 2);
  if (end == kNoPosition) return {begin, std::min(text.find('\n', begin), text.size())};
  return {begin, end + 2};
}

std::optional<Part> LastMarked(std::string_view text) {
  for (size_t i = text.size(); i-- > 0;) {
    const size_t mark_end = EndOfMark(text, i);
    if (mark_end == kNoPosition) continue;
    const size_t begin = SkipEmphasis(text, mark_end);
    if (begin < text.size()) return LineOrFormula(text, begin);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string_view> FinalAnswer(std::string_view response) {
  const auto box = LastClosedBox(response);
  auto marked = LastMarked(response);
  if (box && marked && marked->begin >= box->begin && marked->begin < box->end) {
    marked->end = std::min(marked->end, box->end);  // \boxed{Answer: 42}
  }
  const auto chosen = !marked || (box && box->begin > marked->begin) ? box : marked;
  if (!chosen) return std::nullopt;
  return response.substr(chosen->begin, chosen->end - chosen->begin);
}

std::string_view LastLine(std::string_view response) {
  const std::string_view text = PythonStrip(response);
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace augur
