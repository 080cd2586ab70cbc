#include "formats/gguf.h"

#include <limits>

#include "formats/gguf_metadata.h"
#include "formats/test_files.h"

namespace augur {
namespace {

std::string Text(std::string_view text) { return Raw<uint64_t>(text.size()) + std::string(text); }

std::string Head(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
  return "GGUF" + Raw(version) + Raw(tensors) + Raw(keys);
}

std::string Key(std::string_view key, GgufValueType type, std::string_view value) {
  return Text(key) + Raw(static_cast<uint32_t>(type)) + std::string(value);
}

std::string Tensor(std::string_view name, std::vector<uint64_t> dimensions, uint32_t type, uint64_t offset) {
  std::string out = Text(name) + Raw(static_cast<uint32_t>(dimensions.size()));
  for (const uint64_t dimension : dimensions) out += Raw(dimension);
  return out + Raw(type) + Raw(offset);
}

// The descriptions, padding to 32 bytes, then data.
std::string File(std::string descriptions, size_t data) {
  descriptions.resize((descriptions.size() + 31) / 32 * 32);
  return descriptions + std::string(data, 'x');
}

std::string FaultInGguf(std::string_view file) {
  return MessageOf([&] { ParseGguf(Bytes(file), "m.gguf"); });
}

TEST(GgufTest, ReadsValuesArraysAndTensors) {
  const std::string array =
      Raw(static_cast<uint32_t>(GgufValueType::kString)) + Raw<uint64_t>(2) + Text("a") + Text("bc");
  const std::string numbers = Raw(static_cast<uint32_t>(GgufValueType::kInt32)) + Raw<uint64_t>(2) +
                              Raw<int32_t>(-1) + Raw<int32_t>(7);
  const std::string file =
      File(Head(2, 5, 2) + Key("eps", GgufValueType::kFloat32, Raw(1e-5f)) +
               Key("n", GgufValueType::kUint16, Raw<uint16_t>(9)) + Key("b", GgufValueType::kBool, "\x01") +
               Key("s", GgufValueType::kArray, array) + Key("i", GgufValueType::kArray, numbers) +
               Tensor("v", {3}, 0, 64) + Tensor("m", {32, 2}, 2, 0),
           64 + 12);
  const GgufContent content = ParseGguf(Bytes(file), "m.gguf");
  const GgufMetadata metadata(content, "m.gguf");
  EXPECT_EQ(metadata.Number("eps"), 1e-5);
  EXPECT_EQ(metadata.Integer("n"), 9);
  EXPECT_EQ(metadata.Bool("b"), true);
  EXPECT_EQ(metadata.Strings("s"), (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(metadata.Integers("i"), (std::vector<int64_t>{-1, 7}));
  EXPECT_EQ(metadata.Integer("absent"), std::nullopt);
  EXPECT_TRUE(Says(MessageOf([&] { metadata.Integer("eps"); }), "\"eps\" is not an integer"));
  EXPECT_EQ(content.tensors.at("m").shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(content.tensors.at("m").bytes.size(), 36);
  EXPECT_EQ(content.tensors.at("v").bytes.size(), 12);
}

TEST(GgufTest, RefusesWhatIsNotAReadableGgufFile) {
  EXPECT_TRUE(Says(FaultInGguf(""), "m.gguf: the file is empty"));
  EXPECT_TRUE(Says(FaultInGguf("version https://git-lfs.github.com/spec/v1\n"), "is a git-lfs pointer"));
  EXPECT_TRUE(Says(FaultInGguf("GGML"), "does not begin with \"GGUF\""));
  EXPECT_TRUE(Says(FaultInGguf("GGUF"), "version of 4 bytes reaches past the end"));
  EXPECT_TRUE(Says(FaultInGguf(Head(0, 0, 1)), "has GGUF version 1; Augur reads 2 and 3"));
  EXPECT_TRUE(Says(FaultInGguf(Head(0, 0, 0x03000000)), "big-endian"));
}

// Counts come from the file: each is refused where the file ends, before anything is allocated for it.
TEST(GgufTest, RefusesCountsBeyondTheFile) {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  EXPECT_TRUE(Says(FaultInGguf(Head(0, kHuge)), "key of 8 bytes reaches past the end"));
  EXPECT_TRUE(Says(FaultInGguf(Head(kHuge, 0)), "tensor name of 8 bytes reaches past the end"));
  EXPECT_TRUE(Says(FaultInGguf(Head(0, 1) + Raw(kHuge) + "x"), "key of 18446744073709551615 bytes"));
  const auto array = [](GgufValueType type, uint64_t size) {
    return Head(0, 1) + Key("a", GgufValueType::kArray, Raw(static_cast<uint32_t>(type)) + Raw(size));
  };
  EXPECT_TRUE(Says(FaultInGguf(array(GgufValueType::kUint64, kHuge / 2)),
                   "array 'a' of 9223372036854775807 values overflows"));
  EXPECT_TRUE(Says(FaultInGguf(array(GgufValueType::kUint8, kHuge)), "array of 18446744073709551615 bytes"));
  EXPECT_TRUE(Says(FaultInGguf(array(GgufValueType::kString, kHuge)), "string in an array"));
  EXPECT_TRUE(Says(FaultInGguf(array(GgufValueType::kArray, 1)), "array 'a' has elements of type 9"));
  EXPECT_TRUE(
      Says(FaultInGguf(Head(0, 1) + Key("a", static_cast<GgufValueType>(77), "")), "unknown value type 77"));
}

TEST(GgufTest, RefusesTensorsWhoseSizeOverflowsOrDoesNotFit) {
  const auto one = [](std::vector<uint64_t> dimensions, uint32_t type, uint64_t offset = 0) {
    return FaultInGguf(File(Head(1, 0) + Tensor("t", std::move(dimensions), type, offset), 64));
  };
  constexpr uint64_t kBig = uint64_t{1} << 62;
  EXPECT_TRUE(
      Says(one({kBig, 4}, 0), "tensor 't' has a shape [4, 4611686018427387904] whose size overflows"));
  EXPECT_TRUE(Says(one({kBig + kBig - 32}, 8), "reaches past the end of the data"));
  EXPECT_TRUE(Says(one({~uint64_t{0}}, 0), "tensor 't' has size 18446744073709551615"));
  EXPECT_TRUE(Says(one({33}, 2), "rows of 33 values, not whole Q4_0 blocks of 32"));
  EXPECT_TRUE(Says(one({17}, 0), "of 68 bytes at offset 0 reaches past the end of the data (64 bytes)"));
  EXPECT_TRUE(Says(one({1}, 0, kBig), "comes after a gap"));
  EXPECT_TRUE(Says(one({16}, 10), "has GGML type Q2_K, which Augur does not read"));
  EXPECT_TRUE(Says(one({16}, 999), "has GGML type 999"));
  EXPECT_TRUE(Says(one({}, 0), "has 0 dimensions"));
  EXPECT_TRUE(Says(one({1, 1, 1, 1, 1}, 0), "has 5 dimensions"));
}

TEST(GgufTest, RefusesMisplacedTensors) {
  const auto two = [](uint64_t second_offset, size_t data, std::string_view second_name = "b") {
    return FaultInGguf(
        File(Head(2, 0) + Tensor("a", {9}, 0, 0) + Tensor(second_name, {4}, 0, second_offset), data));
  };
  EXPECT_EQ(two(64, 80), "no error");
  EXPECT_EQ(two(64, 96), "no error");  // the last tensor may be padded
  EXPECT_TRUE(Says(two(32, 80), "tensor 'b' overlaps the tensor before it"));
  EXPECT_TRUE(Says(two(96, 112), "tensor 'b' comes after a gap of 32 bytes"));
  EXPECT_TRUE(Says(two(40, 80), "tensor 'b' at offset 40 is not aligned to 32"));
  EXPECT_TRUE(Says(two(64, 97), "17 bytes after the last tensor"));
  EXPECT_TRUE(Says(two(64, 79), "reaches past the end of the data"));
  EXPECT_TRUE(Says(two(64, 80, "a"), "tensor 'a' occurs twice"));
  EXPECT_TRUE(Says(FaultInGguf(Head(1, 0) + Tensor("a", {4}, 0, 0)), "the file ends before its tensors"));
}

TEST(GgufTest, RefusesDuplicateKeysAndBadAlignment) {
  const std::string key = Key("k", GgufValueType::kUint8, "1");
  EXPECT_TRUE(Says(FaultInGguf(Head(0, 2) + key + key), "the key 'k' occurs twice"));
  for (const uint32_t alignment : {0u, 3u}) {
    EXPECT_TRUE(
        Says(FaultInGguf(Head(0, 1) + Key("general.alignment", GgufValueType::kUint32, Raw(alignment))),
             "not a power of two"));
  }
}

}  // namespace
}  // namespace augur
