// A tokenizer of all bytes and a handful of merges, for tests that need one.
#pragma once

#include <string>

#include "base/json.h"
#include "base/utf8.h"
#include "text/tokenizer.h"
#include "text/word_scanner.h"

namespace augur {

// tokenizer.json with Llama 3's pattern; ids 0 to 255 are the bytes in the order of the byte-level alphabet.
inline Json SmallTokenizerJson() {
  Json vocab = Json::object();
  const auto add = [&vocab](const std::string& token) { vocab[token] = vocab.size(); };
  for (char32_t c = 0x21; c < 0x144; ++c) {
    if ((c > 0x7E && c < 0xA1) || c == 0xAD) continue;
    std::string token;
    AppendUtf8(&token, c);
    add(token);
  }
  Json merges = Json::array();
  for (const auto& [left, right] : {std::pair{"t", "h"}, {"h", "e"}, {"th", "e"}, {"a", "a"}, {"aa", "b"}}) {
    add(std::string(left) + right);
    merges.push_back({left, right});
  }
  const Json flags = {{"single_word", false}, {"lstrip", false}, {"rstrip", false}, {"normalized", false}};
  Json end = flags;
  end.update({{"id", vocab.size()}, {"content", "<|end|>"}, {"special", true}});
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", PatternText(KnownPattern::kLlama3)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"version", "1.0"},
          {"added_tokens", Json::array({end})},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level})}}},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// Without NFC, so that decoding gives the text back.
inline Tokenizer SmallTokenizer() {
  Json spec = SmallTokenizerJson();
  spec["normalizer"] = nullptr;
  return Tokenizer::FromJson(spec.dump(), "small");
}

}  // namespace augur
