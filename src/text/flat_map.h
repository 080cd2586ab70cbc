// The two hash tables a tokenizer lives on, with open addressing in one flat array each.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace augur {

inline constexpr uint32_t kAbsent = 0xFFFFFFFF;

// From a pair of 32-bit numbers to another pair; the key (kAbsent, kAbsent) is reserved.
class PairMap {
 public:
  struct Value {
    uint32_t first = kAbsent, second = kAbsent;
  };

  explicit PairMap(size_t expected = 0) {
    size_t slots = 16;
    while (slots < expected + expected / 2) slots *= 2;
    Resize(slots);
  }

  // Adds the key or replaces its value.
  void Set(uint32_t left, uint32_t right, Value value) {
    if (2 * (count_ + 1) > entries_.size() + entries_.size() / 2) Grow();
    Entry& entry = entries_[Slot(Key(left, right))];
    if (entry.key == kEmpty) ++count_;
    entry = {Key(left, right), value};
  }

  // {kAbsent, kAbsent} if there is no such key.
  Value Find(uint32_t left, uint32_t right) const { return entries_[Slot(Key(left, right))].value; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Entry {
    uint64_t key = kEmpty;
    Value value;
  };

  static uint64_t Key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  size_t Slot(uint64_t key) const {
    size_t slot = (key * 0x9E3779B97F4A7C15u) >> shift_;
    while (entries_[slot].key != key && entries_[slot].key != kEmpty)
      slot = (slot + 1) & (entries_.size() - 1);
    return slot;
  }

  void Resize(size_t slots) {
    entries_.assign(slots, Entry{});
    shift_ = 64 - __builtin_ctzll(slots);
  }

  void Grow() {
    const std::vector<Entry> old = std::move(entries_);
    Resize(2 * old.size());
    for (const Entry& entry : old) {
      if (entry.key != kEmpty) entries_[Slot(entry.key)] = entry;
    }
  }

  std::vector<Entry> entries_;
  size_t count_ = 0;
  int shift_ = 0;
};

// From strings, which stay owned by the caller at fixed addresses, to ids.
class StringMap {
 public:
  explicit StringMap(size_t expected) {
    size_t slots = 16;
    while (slots < 2 * expected) slots *= 2;
    entries_.assign(slots, Entry{});
  }

  // Adds a key that is not there yet; at most `expected` of them.
  void Add(std::string_view key, uint32_t id) {
    const uint64_t hash = Hash(key);
    entries_[Slot(key, hash)] = {key.data(), static_cast<uint32_t>(key.size()), static_cast<uint32_t>(hash),
                                 id};
  }

  // kAbsent if there is no such key.
  uint32_t Find(std::string_view key) const { return entries_[Slot(key, Hash(key))].id; }

 private:
  struct Entry {
    const char* data = nullptr;
    uint32_t size = 0;
    uint32_t tag = 0;
    uint32_t id = kAbsent;
  };

  static uint64_t Load(const char* from, size_t count) {
    uint64_t word = 0;
    std::memcpy(&word, from, count);
    return word;
  }

  static uint64_t Mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9FB21C651E98DF25u;
    return hash ^ hash >> 32;
  }

  static uint64_t Hash(std::string_view key) {
    uint64_t hash = key.size() * 0x9E3779B97F4A7C15u;
    const char* p = key.data();
    size_t left = key.size();
    for (; left >= 8; left -= 8, p += 8) hash = Mix(hash, Load(p, 8));
    if (left >= 4) {
      hash = Mix(hash, Load(p, 4) | Load(p + left - 4, 4) << 32);
    } else if (left > 0) {
      hash = Mix(hash, Load(p, 1) | Load(p + left / 2, 1) << 8 | Load(p + left - 1, 1) << 16);
    }
    return Mix(hash, 0);
  }

  size_t Slot(std::string_view key, uint64_t hash) const {
    const size_t mask = entries_.size() - 1;
    size_t slot = (hash >> 32) & mask;
    for (;; slot = (slot + 1) & mask) {
      const Entry& entry = entries_[slot];
      if (entry.id == kAbsent) return slot;
      if (entry.tag == static_cast<uint32_t>(hash) && entry.size == key.size() &&
          std::memcmp(entry.data, key.data(), key.size()) == 0) {
        return slot;
      }
    }
  }

  std::vector<Entry> entries_;
};

}  // namespace augur
