#include "text/tokenizer.h"

#include "base/error.h"
#include "base/utf8.h"
#include "text/nfc.h"

namespace augur {

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  if (const size_t bad = FirstInvalidUtf8(text); bad != std::string_view::npos) {
    throw Error("text", fmt::format("not valid UTF-8 at byte {}", bad), "convert the text to UTF-8");
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  Words words;
  const auto add_token = [&](uint32_t id) { ids.push_back(static_cast<int32_t>(id)); };
  in_text_->Split(
      text,
      [&](std::string_view piece) {
        if (nfc_ && !IsSurelyNfc(piece)) {
          EncodeNormalized(ToNfc(piece), &words, &ids);
        } else {
          EncodeNormalized(piece, &words, &ids);
        }
      },
      add_token);
  return ids;
}

void Tokenizer::EncodeNormalized(std::string_view text, Words* words, std::vector<int32_t>* ids) const {
  in_normalized_->Split(
      text,
      [&](std::string_view piece) {
        words->words.clear();
        words->storage.clear();
        pre_tokenizer_.Split(piece, words);
        for (const std::string_view word : words->words) model_.Encode(word, ids);
      },
      [&](uint32_t id) { ids->push_back(static_cast<int32_t>(id)); });
}

std::vector<int32_t> Tokenizer::EncodeWithSpecialTokens(std::string_view text) const {
  std::vector<int32_t> ids = Encode(text);
  ids.insert(ids.begin(), prefix_.begin(), prefix_.end());
  ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (!Has(id)) {
    throw Error(where_,
                fmt::format("no token has the id {}; the vocabulary goes up to {}", id,
                            static_cast<int64_t>(kinds_.size()) - 1),
                "decode ids of this tokenizer only");
  }
  return decoded_[id];
}

bool Tokenizer::Has(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < kinds_.size() && kinds_[id] != kNoToken;
}

bool Tokenizer::IsSpecial(int32_t id) const { return Has(id) && kinds_[id] == kSpecial; }

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string_view token = TokenBytes(id);
    if (!skip_special || !IsSpecial(id)) bytes += token;
  }
  if (FirstInvalidUtf8(bytes) == std::string_view::npos) return bytes;
  return LossyUtf8(bytes);
}

std::optional<int32_t> Tokenizer::Find(std::string_view token) const {
  for (const AddedToken& added : added_) {
    if (added.content == token) return static_cast<int32_t>(added.id);
  }
  const uint32_t id = model_.Find(token);
  return id == kAbsent ? std::nullopt : std::optional<int32_t>(id);
}

std::string IncrementalDecoder::Add(int32_t id) {
  const std::string_view token = tokenizer_->TokenBytes(id);
  if (skip_special_ && tokenizer_->IsSpecial(id)) return {};
  waiting_ += token;
  const size_t whole = waiting_.size() - IncompleteUtf8Suffix(waiting_);
  std::string text = LossyUtf8(std::string_view(waiting_).substr(0, whole));
  waiting_.erase(0, whole);
  return text;
}

std::string IncrementalDecoder::Finish() {
  std::string text = LossyUtf8(waiting_);
  waiting_.clear();
  return text;
}

}  // namespace augur
