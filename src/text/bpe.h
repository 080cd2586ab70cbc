// Byte-level byte-pair encoding: the `model` of tokenizer.json.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/flat_map.h"

namespace augur {

class Bpe {
 public:
  // Reads a model of type BPE with `vocab` and `merges` in either form ("a b" or ["a", "b"]), `unk_token`,
  // `fuse_unk` and `ignore_merges`. Throws Error at `where` for a merge that names an absent token, an id
  // given twice or out of range, and options Augur does not have.
  Bpe(const Json& spec, std::string_view where);

  // Appends the ids of one word, given as plain bytes. Bytes that the vocabulary lacks become the unknown
  // token, or vanish where there is none, as they do in `tokenizers`. Takes O(n log n). Safe to call from
  // several threads.
  void Encode(std::string_view word, std::vector<int32_t>* ids) const;

  // One more than the largest id.
  size_t size() const { return tokens_.size(); }
  // How many tokens there are; less than size() where ids have gaps.
  size_t count() const { return count_; }
  // The token as it is written in the file; empty where `id` is unused.
  const std::string& token(size_t id) const { return tokens_[id]; }
  bool Has(size_t id) const { return id < tokens_.size() && used_[id]; }
  // The id of a token as written in the file, kAbsent if there is none.
  uint32_t Find(std::string_view token) const { return by_name_->Find(token); }

 private:
  // Whether a vocabulary entry, met as a word, encodes to itself; found out when first asked.
  enum Wholeness : uint8_t { kUnknown, kWhole, kParts };

  void ReadVocab(const Json& vocab, std::string_view where);
  void ReadMerges(const Json& merges, std::string_view where);
  void Index();
  void Symbols(std::string_view word, std::vector<uint32_t>* symbols) const;
  void Merge(std::string_view word, std::vector<int32_t>* ids) const;
  void MergeShort(std::vector<uint32_t>* symbols) const;
  void MergeLong(std::vector<uint32_t>* symbols) const;

  std::vector<std::string> tokens_;  // by id, as written in the file
  std::vector<std::string>
      bytes_;  // by id, as plain bytes; empty where the token is outside the byte alphabet
  std::vector<bool> used_;
  size_t count_ = 0;
  std::unique_ptr<StringMap> by_name_;   // tokens_
  std::unique_ptr<StringMap> by_bytes_;  // bytes_
  std::unique_ptr<std::atomic<uint8_t>[]> wholeness_;
  PairMap merges_;  // (left, right) -> (rank, id of both together)
  std::array<uint32_t, 256> byte_ids_;
  uint32_t unknown_ = kAbsent;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace augur
