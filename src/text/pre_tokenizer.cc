#include "text/pre_tokenizer.h"

#include "base/error.h"
#include "text/unicode_class.h"

namespace augur {
namespace {

constexpr std::string_view kPreTokenizerRemedy =
    "Augur reads byte-level BPE as Llama 3, Qwen2, Qwen3 and SmolLM2 use it";

bool Flag(const Json& spec, std::string_view key, bool fallback, std::string_view where) {
  const auto found = spec.find(key);
  if (found == spec.end()) return fallback;
  if (!found->is_boolean()) {
    throw Error(where, fmt::format("\"{}\" is {}, not true or false", key, KindOf(*found)), "correct it");
  }
  return found->get<bool>();
}

// The leaves of nested Sequences, in order.
std::vector<const Json*> Flatten(const Json& spec, std::string_view where) {
  std::vector<const Json*> leaves, open = {&spec};
  while (!open.empty()) {
    const Json* next = open.back();
    open.pop_back();
    if (RequireString(*next, "type", where) != "Sequence") {
      leaves.push_back(next);
      continue;
    }
    const Json& parts = RequireKey(*next, "pretokenizers", where);
    if (!parts.is_array()) throw Error(where, "\"pretokenizers\" is not a list", "correct it");
    for (auto it = parts.rbegin(); it != parts.rend(); ++it) open.push_back(&*it);
  }
  return leaves;
}

// Calls on_piece for the runs of digits and of other characters; with `individual`, each digit alone.
template <class OnPiece>
void SplitDigits(std::string_view text, bool individual, const OnPiece& on_piece) {
  size_t begin = 0;
  bool was_digit = false;
  for (size_t offset = 0; offset < text.size();) {
    const size_t start = offset;
    const bool digit = IsNumeric(DecodeValid(text, &offset));
    if (start > begin && (digit != was_digit || (digit && individual))) {
      on_piece(text.substr(begin, start - begin));
      begin = start;
    }
    was_digit = digit;
  }
  if (begin < text.size()) on_piece(text.substr(begin));
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& spec, std::string_view where) {
  if (spec.is_null()) throw Error(where, "there is no pre_tokenizer", kPreTokenizerRemedy);
  for (const Json* leaf : Flatten(spec, where)) AddStage(*leaf, where);
  if (!byte_level_) throw Error(where, "the pre_tokenizer has no ByteLevel", kPreTokenizerRemedy);
}

void PreTokenizer::AddStage(const Json& spec, std::string_view where) {
  const std::string type = RequireString(spec, "type", where);
  if (byte_level_) {
    throw Error(where, fmt::format("pre_tokenizer {} after ByteLevel is not supported", type),
                kPreTokenizerRemedy);
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    if (Flag(spec, "add_prefix_space", true, where)) stages_.emplace_back(PrefixSpace{});
    if (Flag(spec, "use_regex", true, where)) stages_.emplace_back(KnownPattern::kGpt2);
  } else if (type == "Digits") {
    stages_.emplace_back(Digits{Flag(spec, "individual_digits", false, where)});
  } else if (type == "Split") {
    const std::string behavior = RequireString(spec, "behavior", where);
    if (behavior != "Isolated") {
      throw Error(where, fmt::format("Split with behavior {} is not supported, only Isolated", behavior),
                  kPreTokenizerRemedy);
    }
    const Json& pattern = RequireKey(spec, "pattern", where);
    if (pattern.is_object() && pattern.contains("String")) {
      stages_.emplace_back(Regex::Literal(RequireString(pattern, "String", where), where));
      return;
    }
    const std::string regex = RequireString(pattern, "Regex", where);
    if (const auto known = RecognisePattern(regex)) {
      stages_.emplace_back(*known);
    } else {
      stages_.emplace_back(Regex(regex, where));
    }
  } else {
    throw Error(where, fmt::format("pre_tokenizer {} is not supported", type), kPreTokenizerRemedy);
  }
}

void PreTokenizer::Apply(const Stage& stage, std::string_view piece, std::vector<std::string_view>* words,
                         std::deque<std::string>* storage) {
  const auto add = [words](std::string_view word) { words->push_back(word); };
  if (const auto* pattern = std::get_if<KnownPattern>(&stage)) {
    for (size_t start = 0; start < piece.size();) {
      const size_t end = WordEnd(*pattern, piece, start);
      add(piece.substr(start, end - start));
      start = end;
    }
  } else if (const auto* regex = std::get_if<Regex>(&stage)) {
    regex->Isolate(piece, add);
  } else if (const auto* digits = std::get_if<Digits>(&stage)) {
    SplitDigits(piece, digits->individual, add);
  } else if (piece.starts_with(' ')) {
    add(piece);
  } else {
    add(storage->emplace_back(" " + std::string(piece)));
  }
}

void PreTokenizer::Split(std::string_view text, Words* out) const {
  if (text.empty()) return;
  if (stages_.size() == 1) return Apply(stages_[0], text, &out->words, &out->storage);
  std::vector<std::string_view> pieces = {text};
  for (const Stage& stage : stages_) {
    std::vector<std::string_view> next;
    for (const std::string_view piece : pieces) Apply(stage, piece, &next, &out->storage);
    pieces = std::move(next);
  }
  out->words.insert(out->words.end(), pieces.begin(), pieces.end());
}

}  // namespace augur
