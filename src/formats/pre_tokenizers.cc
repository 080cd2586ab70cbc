#include "formats/pre_tokenizers.h"

namespace augur {
namespace {

constexpr PreTokenizer kSmolLm = {
    .name = "smollm",
    .normalizer = "null",
    .pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]})",
    .post_processor = "null",
    .decoder = R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})",
    .affix = "null",
    .ignore_merges = false,
    .adds_bos = false,
};

constexpr PreTokenizer kQwen2 = {
    .name = "qwen2",
    .normalizer = R"({"type": "NFC"})",
    .pre_tokenizer = R"re({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
         "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})re",
    .post_processor =
        R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})",
    .decoder =
        R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})",
    .affix = R"("")",
    .ignore_merges = false,
    .adds_bos = false,
};

constexpr PreTokenizer kLlama3 = {
    .name = "llama-bpe",
    .normalizer = "null",
    .pre_tokenizer = R"re({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
         "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})re",
    .post_processor =
        R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})",
    .decoder = R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})",
    .affix = "null",
    .ignore_merges = true,
    .adds_bos = true,
};

constexpr PreTokenizer kKnown[] = {kSmolLm, kQwen2, kLlama3};

}  // namespace

std::span<const PreTokenizer> KnownPreTokenizers() { return kKnown; }

}  // namespace augur
