#include "text/bpe.h"

#include "text/byte_level.h"

namespace augur {
namespace {

// Up to here looking through all pairs for the best one is faster than keeping a queue.
constexpr size_t kShortWord = 128;

}  // namespace

void Bpe::Index() {
  by_bytes_ = std::make_unique<StringMap>(count_);
  bytes_.resize(tokens_.size());
  byte_ids_.fill(kAbsent);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].empty() || !BytesFromByteLevel(tokens_[id], &bytes_[id])) {
      bytes_[id].clear();
      continue;
    }
    by_bytes_->Add(bytes_[id], static_cast<uint32_t>(id));
    if (bytes_[id].size() == 1)
      byte_ids_[static_cast<unsigned char>(bytes_[id][0])] = static_cast<uint32_t>(id);
  }
  wholeness_ = std::make_unique<std::atomic<uint8_t>[]>(tokens_.size());
}

void Bpe::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  const uint32_t id = by_bytes_->Find(word);
  if (id == kAbsent) return Merge(word, ids);
  const uint8_t known = wholeness_[id].load(std::memory_order_relaxed);
  if (ignore_merges_ || known == kWhole) {
    ids->push_back(static_cast<int32_t>(id));
    return;
  }
  const size_t before = ids->size();
  Merge(word, ids);
  if (known == kUnknown) {
    const bool whole = ids->size() == before + 1 && ids->back() == static_cast<int32_t>(id);
    wholeness_[id].store(whole ? kWhole : kParts, std::memory_order_relaxed);
  }
}

void Bpe::Symbols(std::string_view word, std::vector<uint32_t>* symbols) const {
  bool after_unknown = false;
  for (const char c : word) {
    const uint32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id != kAbsent) {
      symbols->push_back(id);
    } else if (unknown_ != kAbsent && !(after_unknown && fuse_unknown_)) {
      symbols->push_back(unknown_);
    }
    after_unknown = id == kAbsent;
  }
}

void Bpe::Merge(std::string_view word, std::vector<int32_t>* ids) const {
  thread_local std::vector<uint32_t> symbols;
  symbols.clear();
  Symbols(word, &symbols);
  if (symbols.size() <= kShortWord) {
    MergeShort(&symbols);
  } else {
    MergeLong(&symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

// Joins the pair of lowest rank, leftmost first, until no pair is left in the table.
void Bpe::MergeShort(std::vector<uint32_t>* symbols) const {
  size_t count = symbols->size();
  uint32_t* symbol = symbols->data();
  PairMap::Value pairs[kShortWord];  // pairs[i]: symbols i and i + 1
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.Find(symbol[i], symbol[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].first < pairs[best].first) best = i;
    }
    if (pairs[best].first == kAbsent) break;
    symbol[best] = pairs[best].second;
    --count;
    for (size_t i = best + 1; i < count; ++i) symbol[i] = symbol[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (best + 1 < count) pairs[best] = merges_.Find(symbol[best], symbol[best + 1]);
    if (best > 0) pairs[best - 1] = merges_.Find(symbol[best - 1], symbol[best]);
  }
  symbols->resize(count);
}

}  // namespace augur
