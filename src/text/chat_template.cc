#include "text/chat_template.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace augur {
namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

// Cuts a template into tokens as Jinja does with trim_blocks and lstrip_blocks, which transformers sets.
// Strings and the text between tags begin with a quote; names, numbers and operators stand for themselves.
class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

  std::vector<std::string> Run() {
    while (at_ < source_.size()) {
      const size_t open = NextTag();
      Text(open);
      if (open == source_.size()) break;
      Tag(open);
    }
    return std::move(tokens_);
  }

 private:
  size_t NextTag() const {
    for (size_t open = source_.find('{', at_); open != std::string_view::npos;
         open = source_.find('{', open + 1)) {
      const char kind = open + 1 < source_.size() ? source_[open + 1] : '\0';
      if (kind == '{' || kind == '%' || kind == '#') return open;
    }
    return source_.size();
  }

  // What stands before the tag at `open`, less the white space that tags take away.
  void Text(size_t open) {
    std::string_view text = source_.substr(at_, open - at_);
    const std::string_view tag = source_.substr(open);
    if (strip_next_) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (tag.size() > 2 && tag[2] == '-') {
      text = text.substr(0, text.find_last_not_of(kSpace) + 1);
    } else if (tag.starts_with("{%") || tag.starts_with("{#")) {
      const size_t line = text.find_last_of('\n') + 1;  // 0 when there is no newline
      const bool line_start = line > 0 || at_ == 0 || after_newline_;
      if (line_start && text.find_first_not_of(" \t", line) == std::string_view::npos)
        text = text.substr(0, line);
    }
    if (!text.empty()) tokens_.push_back("\"" + std::string(text));
  }

  void Tag(size_t open) {
    const char kind = source_[open + 1];
    const std::string_view closing = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    at_ = open + 2;
    if (kind == '#') {
      at_ = std::min(source_.find(closing, at_), source_.size());
      strip_next_ = source_[at_ - 1] == '-';
    } else {
      tokens_.emplace_back(source_.substr(open, 2));
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      while (at_ < source_.size() && !Closes(closing)) Expression();
      tokens_.emplace_back(closing);
      strip_next_ = at_ < source_.size() && source_[at_] == '-';
      at_ += strip_next_;
    }
    at_ = std::min(at_ + 2, source_.size());
    after_newline_ = kind != '{' && !strip_next_ && at_ < source_.size() && source_[at_] == '\n';
    at_ += after_newline_;
  }

  bool Closes(std::string_view closing) const {
    std::string_view rest = source_.substr(at_);
    if (rest.starts_with('-')) rest.remove_prefix(1);
    return rest.starts_with(closing);
  }

  void Expression() {
    const char c = source_[at_];
    if (std::isspace(static_cast<unsigned char>(c))) {
      ++at_;
    } else if (c == '"' || c == '\'') {
      String(c);
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      const size_t start = at_;
      while (at_ < source_.size() &&
             (std::isalnum(static_cast<unsigned char>(source_[at_])) || source_[at_] == '_')) {
        ++at_;
      }
      tokens_.emplace_back(source_.substr(start, at_ - start));
    } else {
      tokens_.emplace_back(1, c);
      ++at_;
      Subscript();
    }
  }

  void String(char quote) {
    std::string text = "\"";
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      if (source_[at_] == '\\' && at_ + 1 < source_.size()) {
        const char c = source_[++at_];
        if (c != 'n' && c != 't' && c != '\\' && c != '\'' && c != '"') text += '\\';
        text += c == 'n' ? '\n' : c == 't' ? '\t' : c;
      } else {
        text += source_[at_];
      }
    }
    ++at_;
    tokens_.push_back(std::move(text));
  }

  // a['b'] becomes a.b
  void Subscript() {
    const size_t n = tokens_.size();
    if (n < 3 || tokens_[n - 1] != "]" || tokens_[n - 3] != "[" || !tokens_[n - 2].starts_with('"')) return;
    std::string name = tokens_[n - 2].substr(1);
    tokens_.resize(n - 3);
    tokens_.emplace_back(".");
    tokens_.push_back(std::move(name));
  }

  std::string_view source_;
  size_t at_ = 0;
  bool strip_next_ = false;     // the last tag ended with '-'
  bool after_newline_ = false;  // the last tag took the newline after it
  std::vector<std::string> tokens_;
};

// Replaces the system line of '<|im_start|>system\n...<|im_end|>\n', wherever it stands, by '*' and returns
// it.
std::string TakeDefaultSystem(std::vector<std::string>* tokens) {
  constexpr std::string_view kOpen = "\"<|im_start|>system\n", kClose = "<|im_end|>\n";
  for (const std::string& token : *tokens) {
    if (!token.starts_with(kOpen) || !token.ends_with(kClose) || token.size() <= kOpen.size() + kClose.size())
      continue;
    const std::string line = token.substr(kOpen.size(), token.size() - kOpen.size() - kClose.size());
    const std::string whole = token;
    for (std::string& other : *tokens) {
      if (other == whole) other = std::string(kOpen) + "*" + std::string(kClose);
      if (other == "\"" + line) other = "\"*";
    }
    return line;
  }
  return "";
}

}  // namespace

TemplateIdentity IdentifyTemplate(std::string_view jinja) {
  std::vector<std::string> tokens = Lexer(jinja).Run();
  TemplateIdentity identity;
  identity.default_system = TakeDefaultSystem(&tokens);
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  const auto feed = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001B3u; };
  for (const std::string& token : tokens) {
    for (const char c : token) feed(static_cast<unsigned char>(c));
    feed(0);
  }
  identity.fingerprint = hash;
  return identity;
}

}  // namespace augur
