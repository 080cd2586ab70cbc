#include "reward/latex_form.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "reward/python_text.h"

namespace augur {
namespace {

// A space that groups digits (\, and Unicode's thin spaces) until thousands have been joined.
constexpr char kThinSpace = '\x02';

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

constexpr std::pair<char32_t, std::string_view> kCharacters[] = {
    {0x2010, "-"},       {0x2011, "-"},     {0x2012, "-"},        {0x2013, "-"},        {0x2212, "-"},
    {0xFE63, "-"},       {0x2044, "/"},     {0x2215, "/"},        {0x00D7, "\\times "}, {0x00B7, "\\cdot "},
    {0x22C5, "\\cdot "}, {0x03C0, "\\pi "}, {0x221E, "\\infty "}, {0x2264, "\\le "},    {0x2265, "\\ge "},
    {0x2260, "\\ne "},   {0x00B1, "\\pm "}, {0x201C, "\""},       {0x201D, "\""},       {0x00B0, "\u00B0"}};

// Lookalikes in ASCII or LaTeX, white space as ' ', control characters as white space.
std::string PlainCharacters(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextCodePoint(text, &i);
    const auto found = std::ranges::find(kCharacters, c, &std::pair<char32_t, std::string_view>::first);
    if (found != std::end(kCharacters)) {
      out += found->second;
    } else if (c == 0x2009 || c == 0x202F) {
      out += kThinSpace;
    } else if (c < 0x20 || c == 0x7F || IsPythonSpace(c)) {
      out += ' ';
    } else if (c >= 0xFF01 && c <= 0xFF5E) {  // full-width forms of '!' to '~'
      out += static_cast<char>(c - 0xFF01 + '!');
    } else {
      AppendUtf8(&out, c == kInvalidCodePoint ? 0xFFFD : c);
    }
  }
  return out;
}

constexpr std::pair<std::string_view, std::string_view> kCommands[] = {
    {"dfrac", "\\frac"},  {"tfrac", "\\frac"},  {"cfrac", "\\frac"},  {"leq", "\\le"},
    {"leqslant", "\\le"}, {"geq", "\\ge"},      {"geqslant", "\\ge"}, {"neq", "\\ne"},
    {"left", ""},         {"right", ""},        {"big", ""},          {"Big", ""},
    {"displaystyle", ""}, {"degree", "\u00B0"}, {"quad", " "},        {"qquad", " "},
    {"circ", "\\circ"}};

// Font commands vanish; \text and its like leave marks.
constexpr std::string_view kFonts[] = {"boxed", "textbf", "textit", "mathbf", "mathit", "operatorname"};
constexpr std::string_view kTexts[] = {"text", "textrm", "mathrm", "mbox"};

template <size_t N>
bool ContainsText(const std::string_view (&names)[N], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

// Rewrites commands in one pass. What a closing brace becomes was decided at its opening.
class CommandPass {
 public:
  std::string Run(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
      if (text[i] == '\\') {
        i = Command(text, i + 1);
      } else if (text[i] == '{') {
        Open("{", "}");
        ++i;
      } else if (text[i] == '}') {
        Close();
        ++i;
      } else {
        out_ += text[i] == '$' ? ' ' : text[i] == '~' ? ' ' : text[i];
        ++i;
      }
    }
    if (!closings_.empty()) out_ += '{';  // cut off: must not equal the whole
    return std::move(out_);
  }

 private:
  void Open(std::string_view opening, std::string_view closing) {
    out_ += opening;
    closings_.push_back(closing);
  }

  void Close() {
    out_ += closings_.empty() ? "}" : closings_.back();
    if (!closings_.empty()) closings_.pop_back();
  }

  // `offset` is past the backslash; returns the offset past the command.
  size_t Command(std::string_view text, size_t offset) {
    size_t end = offset;
    while (end < text.size() && IsLetter(text[end])) ++end;
    if (end == offset) return Symbol(text, offset);
    const std::string_view name = text.substr(offset, end - offset);
    const size_t brace = std::min(text.find_first_not_of(' ', end), text.size());
    const bool has_brace = brace < text.size() && text[brace] == '{';
    if (has_brace && (ContainsText(kFonts, name) || ContainsText(kTexts, name))) {
      static constexpr std::string_view kMark(&kTextMark, 1);
      const std::string_view mark = ContainsText(kTexts, name) ? kMark : "";
      Open(mark, mark);
      return brace + 1;
    }
    const auto found =
        std::ranges::find(kCommands, name, &std::pair<std::string_view, std::string_view>::first);
    if (found == std::end(kCommands)) {
      out_.append("\\").append(name);
    } else {
      out_ += found->second;
    }
    return end;
  }

  // A backslash before something that is not a letter.
  size_t Symbol(std::string_view text, size_t offset) {
    if (offset == text.size()) return offset;
    const char c = text[offset];
    if (c == ',') {
      out_ += kThinSpace;
    } else if (std::string_view(";: ()[]").find(c) != std::string_view::npos) {
      out_ += ' ';
    } else if (c == '\\') {
      out_ += ';';  // the end of a matrix's row
    } else if (c == '%') {
      out_ += '%';
    } else if (c == '{' || c == '}') {
      out_.append("\\").append(1, c == '{' ? '(' : ')');  // a set's braces, which group nothing
    } else if (c != '!' && c != '$') {
      out_.append("\\").append(1, c);
    }
    return offset + 1;
  }

  std::string out_;
  std::vector<std::string_view> closings_;
};

// End of "ddd" groups, each after a separator, that begin at `offset`; `offset` itself if there is none.
size_t EndOfGroups(std::string_view text, size_t offset) {
  while (true) {
    const bool separated = offset < text.size() && (text[offset] == ',' || text[offset] == kThinSpace);
    if (!separated) return offset;
    size_t end = offset + 1;
    while (end < text.size() && IsDigit(text[end])) ++end;
    if (end != offset + 4) return offset;
    offset = end;
  }
}

// 1,234,567 -> 1234567, outside brackets only: (1,234) is a pair. Other thin spaces become plain ones.
std::string JoinThousands(std::string_view text) {
  std::string out;
  int brackets = 0;
  for (size_t i = 0; i < text.size();) {
    if (!IsDigit(text[i])) {
      if (text[i] == '(' || text[i] == '[') ++brackets;
      if (text[i] == ')' || text[i] == ']') --brackets;
      out += text[i] == kThinSpace ? ' ' : text[i];
      ++i;
      continue;
    }
    const bool decimals = i > 0 && (text[i - 1] == '.' || text[i - 1] == ',');
    size_t end = i;
    while (end < text.size() && IsDigit(text[end])) ++end;
    const bool leads = end - i <= 3 && text[i] != '0' && brackets == 0 && !decimals;
    const size_t group_end = leads ? EndOfGroups(text, end) : end;
    const bool whole = group_end == text.size() || text[group_end] != ',' || group_end + 1 == text.size() ||
                       !IsDigit(text[group_end + 1]);
    const size_t stop = whole ? group_end : end;
    std::copy_if(text.begin() + i, text.begin() + stop, std::back_inserter(out), IsDigit);
    i = stop;
  }
  return out;
}

char SpaceClass(char c) { return IsDigit(c) || c == '.' ? '0' : IsLetter(c) ? 'a' : c; }

// Keeps a single space where its absence would join two digits or two letters.
std::string DropSpaces(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ' ') {
      out += text[i];
      continue;
    }
    const size_t next = std::min(text.find_first_not_of(' ', i), text.size());
    if (!out.empty() && next < text.size()) {
      const char before = SpaceClass(out.back());
      if ((before == '0' || before == 'a') && before == SpaceClass(text[next])) out += ' ';
    }
    i = next - 1;
  }
  return out;
}

// Length of the argument at the front of `text`: a command, or a character.
size_t BareArgument(std::string_view text) {
  size_t end = 0;
  NextCodePoint(text, &end);
  while (text[0] == '\\' && end < text.size() && IsLetter(text[end])) ++end;
  return end;
}

// Length of {...} at the front of `text`; 0 if it holds other braces or does not close.
size_t SimpleGroup(std::string_view text) {
  const size_t brace = text.find_first_of("{}", 1);
  return brace != std::string_view::npos && text[brace] == '}' ? brace + 1 : 0;
}

// Appends the arguments of \frac or \sqrt from the front of `text`, in braces, and returns what it took. It
// stops at an argument with braces inside, which is in canonical form as it stands.
size_t LatexBraceArguments(std::string_view text, int count, std::string* out) {
  size_t taken = 0;
  while (count > 0 && taken < text.size()) {
    const std::string_view rest = text.substr(taken);
    if (rest[0] == ' ') {
      ++taken;
      continue;
    }
    const bool braced = rest[0] == '{';
    const size_t length = braced ? SimpleGroup(rest) : BareArgument(rest);
    if (length == 0) return taken;
    if (!braced) *out += '{';
    *out += rest.substr(0, length);
    if (!braced) *out += '}';
    taken += length;
    --count;
  }
  return taken;
}

// \frac12 -> \frac{1}{2}, \sqrt2 -> \sqrt{2}, x^{2} -> x^2.
std::string CanonicalBraces(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const bool fraction = rest.starts_with("\\frac");
    const bool root = rest.starts_with("\\sqrt") && !rest.substr(5).starts_with("[");
    if (fraction || root) {
      out += rest.substr(0, 5);
      i += 5 + LatexBraceArguments(rest.substr(5), fraction ? 2 : 1, &out);
    } else if ((rest[0] == '^' || rest[0] == '_') && rest.size() > 3 && rest[1] == '{' && rest[3] == '}') {
      out.append(1, rest[0]).append(1, rest[2]);
      i += 4;
    } else {
      out += rest[0];
      ++i;
    }
  }
  return out;
}

}  // namespace

std::string PlainLatex(std::string_view text) {
  std::string plain = CommandPass().Run(PlainCharacters(text));
  plain = ReplaceAll(plain, "{,}", ",");
  plain = ReplaceAll(plain, "^{\\circ}", "\u00B0");
  plain = ReplaceAll(plain, "^\\circ", "\u00B0");
  plain = ReplaceAll(plain, "^\u00B0", "\u00B0");
  return CanonicalBraces(DropSpaces(JoinThousands(plain)));
}

}  // namespace augur
