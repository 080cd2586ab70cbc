#include "formats/safetensors.h"

#include <cstring>

#include "formats/test_files.h"

namespace augur {
namespace {

std::string FileOf(std::string_view header, std::string_view data) {
  return Raw<uint64_t>(header.size()) + std::string(header) + std::string(data);
}

std::string FaultIn(std::string_view file) {
  return MessageOf([&] { ParseSafetensors(Bytes(file), "w.safetensors"); });
}

std::string FaultInHeader(std::string_view header, std::string_view data = "01234567") {
  return FaultIn(FileOf(header, data));
}

TEST(SafetensorsTest, ReadsTensorsAtUnalignedOffsetsAndMetadata) {
  const std::string file = FileOf(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,1],"data_offsets":[1,5]},)"
      R"("a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"z":{"dtype":"I64","shape":[0,7],"data_offsets":[5,5]}} )",
      "x" + Raw(2.5f));
  const SafetensorsContent content = ParseSafetensors(Bytes(file), "w");
  EXPECT_EQ(content.metadata.at("format"), "pt");
  EXPECT_EQ(content.tensors.size(), 3);
  const TensorView& b = content.tensors.at("b");
  float value;
  std::memcpy(&value, b.bytes.data(), 4);
  EXPECT_EQ(value, 2.5f);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{1, 1}));
  EXPECT_TRUE(content.tensors.at("a").shape.empty());
  EXPECT_TRUE(content.tensors.at("z").bytes.empty());
}

TEST(SafetensorsTest, RefusesEmptyTruncatedAndOversizedHeaders) {
  EXPECT_EQ(FaultIn(""), "w.safetensors: the file is empty; fetch it again");
  EXPECT_TRUE(Says(FaultIn("1234567"), "only 7 bytes, too short"));
  EXPECT_TRUE(Says(FaultIn(Raw<uint64_t>(50) + "{}"), "header of 50 bytes reaches past the end"));
  EXPECT_TRUE(Says(FaultIn(Raw<uint64_t>(100'000'001) + "{}"), "more than the 100000000 allowed"));
  EXPECT_TRUE(Says(FaultIn(Raw<uint64_t>(~0ull) + "{}"), "more than the 100000000 allowed"));
  EXPECT_TRUE(Says(FaultInHeader(""), "not valid JSON"));
  EXPECT_TRUE(Says(FaultInHeader("{\"a\":"), "not valid JSON"));
  EXPECT_TRUE(Says(FaultInHeader("[]"), "not a JSON object"));
  EXPECT_TRUE(Says(FaultInHeader("{\"\xff\":1}"), "not valid JSON"));
}

TEST(SafetensorsTest, NamesAGitLfsPointer) {
  EXPECT_TRUE(Says(FaultIn("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"),
                   "is a git-lfs pointer, not the file itself; run 'git lfs pull'"));
}

TEST(SafetensorsTest, RefusesGapsOverlapsAndTrailingBytes) {
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                 R"("b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}})"),
                   "tensor 'b' comes after a gap of 1 bytes"));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                 R"("b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})"),
                   "tensor 'b' overlaps the tensor before it"));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
                   "4 bytes after the last tensor"));
  EXPECT_TRUE(Says(FaultInHeader("{}"), "8 bytes after the last tensor"));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})"),
                   "tensor 'a' ends at byte 9 of 8 bytes of data"));
}

TEST(SafetensorsTest, RefusesShapesThatOverflowOrDoNotFitTheirRange) {
  EXPECT_TRUE(
      Says(FaultInHeader(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})"),
           "whose size overflows"));
  EXPECT_TRUE(
      Says(FaultInHeader(R"({"a":{"dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8]}})"),
           "whose size overflows"));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"),
                   "tensor 'a' of shape [3] and dtype F32 needs 12 bytes but its range holds 8"));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}})"), "not a size"));
  EXPECT_TRUE(
      Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,8]}})"),
           "not a size"));
  EXPECT_TRUE(
      Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}})"), "not a size"));
  EXPECT_TRUE(
      Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})"), "[begin, end]"));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}})"), "[begin, end]"));
}

TEST(SafetensorsTest, RefusesDuplicateNamesAndMalformedEntries) {
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                                 R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})"),
                   "the key 'a' occurs twice"));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"Q3","shape":[8],"data_offsets":[0,8]}})"),
                   "dtype 'Q3', which Augur does not read"));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"shape":[8],"data_offsets":[0,8]}})"), "has no \"dtype\""));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":{"dtype":"U8","data_offsets":[0,8]}})"), "has no list \"shape\""));
  EXPECT_TRUE(Says(FaultInHeader(R"({"a":7})"), "not described by an object"));
  EXPECT_TRUE(Says(FaultInHeader(R"({"__metadata__":{"x":1}})"), "metadata 'x' is not a string"));
}

// A seed of the fuzzer, written by the Python package safetensors.
TEST(SafetensorsTest, ReadsAFileOfTheReferenceImplementation) {
  const SafetensorsFile file(std::filesystem::path(AUGUR_SOURCE_DIR) /
                             "tests/fuzz/seeds/formats_safetensors/several.safetensors");
  EXPECT_EQ(file.tensors().size(), 4);
  const TensorView& weight = file.tensors().at("m.weight");
  EXPECT_EQ(weight.dtype, DType::kF16);
  EXPECT_EQ(weight.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(weight.bytes[1], std::byte{0x3C});  // 1.0 is 0x3C00
}

using SafetensorsFilesTest = FormatsTest;

TEST_F(SafetensorsFilesTest, WritesWhatItReads) {
  const std::string ints = Raw<int32_t>(1) + Raw<int32_t>(-2), byte = "y";
  WriteSafetensors(dir_ / "m",
                   {SourceOf("byte", DType::kU8, {1}, Bytes(byte)),
                    {"ints",
                     DType::kI32,
                     {2},
                     [&](const ByteSink& sink) {
                       sink(Bytes(ints).first(3));
                       sink(Bytes(ints).subspan(3));
                     }}},
                   {{"format", "pt"}});
  const SafetensorsFile file(dir_ / "m");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(std::memcmp(file.tensors().at("ints").bytes.data(), ints.data(), 8), 0);
  EXPECT_EQ(file.tensors().at("byte").bytes[0], std::byte{'y'});
  // Wider elements come first, at an aligned place.
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensors().at("ints").bytes.data()) % 8, 0);
}

TEST_F(SafetensorsFilesTest, AWriteThatFailsLeavesNoFile) {
  EXPECT_TRUE(Says(MessageOf([&] {
                     WriteSafetensors(
                         dir_ / "m", {SourceOf("a", DType::kU8, {0}, {}), SourceOf("a", DType::kU8, {0}, {})},
                         {});
                   }),
                   "two tensors are named 'a'"));
  const TensorSource failing{
      "a", DType::kU8, {5}, [](const ByteSink&) { throw Error("x", "read error", ""); }};
  EXPECT_EQ(MessageOf([&] { WriteSafetensors(dir_ / "m", {failing}, {}); }), "x: read error");
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
  EXPECT_TRUE(Says(MessageOf([&] { WriteSafetensors(dir_ / "none" / "m", {}, {}); }), "cannot create"));
}

class SafetensorsDirectoryTest : public FormatsTest {
 protected:
  void PutShard(const std::string& name, const std::vector<std::string>& tensors) {
    std::vector<TensorSource> sources;
    for (const std::string& tensor : tensors)
      sources.push_back(SourceOf(tensor, DType::kU8, {1}, Bytes("x")));
    WriteSafetensors(dir_ / name, sources, {});
  }
  void PutIndex(std::string_view weight_map) {
    Put("model.safetensors.index.json", "{\"weight_map\":" + std::string(weight_map) + "}");
  }
  std::string Fault() {
    return MessageOf([&] { SafetensorsDirectory{dir_}; });
  }
};

TEST_F(SafetensorsDirectoryTest, JoinsTheShardsOfAnIndex) {
  PutShard("m-1.safetensors", {"a", "b"});
  PutShard("m-2.safetensors", {"c"});
  PutIndex(R"({"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"})");
  const SafetensorsDirectory directory(dir_);
  EXPECT_EQ(directory.tensors().size(), 3);
  EXPECT_EQ(directory.tensors().at("c").bytes[0], std::byte{'x'});
}

TEST_F(SafetensorsDirectoryTest, TakesTheSingleFileFirst) {
  PutShard("model.safetensors", {"a"});
  PutIndex(R"({"b":"gone"})");
  EXPECT_TRUE(SafetensorsDirectory(dir_).tensors().contains("a"));
}

TEST_F(SafetensorsDirectoryTest, SaysWhatDoesNotFitBetweenIndexAndShards) {
  PutShard("1", {"a"});
  PutShard("2", {"a", "b"});
  PutIndex(R"({"a":"1","b":"3"})");
  EXPECT_TRUE(Says(Fault(), "/3: this shard is named by the index but missing"));
  PutIndex(R"({"a":"1","b":"2"})");
  EXPECT_TRUE(Says(Fault(), "tensor 'a' is in 2 but listed in 1"));
  PutIndex(R"({"a":"1","c":"1"})");
  EXPECT_TRUE(Says(Fault(), "tensor 'c' is listed in 1 but not there"));
  PutIndex(R"({"b":"2"})");
  EXPECT_TRUE(Says(Fault(), "tensor 'a' of 2 is not listed"));
  PutIndex(R"({"a":"../1"})");
  EXPECT_TRUE(Says(Fault(), "which is not a file name"));
  PutIndex(R"({"a":"1","a":"2"})");
  EXPECT_TRUE(Says(Fault(), "the key 'a' occurs twice"));
  PutIndex("{}");
  EXPECT_TRUE(Says(Fault(), "names no tensors"));
  Put("model.safetensors.index.json", "{}");
  EXPECT_TRUE(Says(Fault(), "the key \"weight_map\" is missing"));
}

TEST_F(SafetensorsDirectoryTest, SaysWhatToDoWhereThereAreNoWeights) {
  EXPECT_TRUE(Says(Fault(), "neither model.safetensors nor"));
  Put("x.gguf", "");
  EXPECT_TRUE(Says(Fault(), "augur convert"));
  Put("pytorch_model.bin", "");
  EXPECT_TRUE(Says(Fault(), "pickled weights"));
  EXPECT_TRUE(Says(MessageOf([&] { SafetensorsDirectory{dir_ / "none"}; }), "no such directory"));
  EXPECT_TRUE(Says(MessageOf([&] { SafetensorsDirectory{dir_ / "x.gguf"}; }), "is not a directory"));
}

}  // namespace
}  // namespace augur
