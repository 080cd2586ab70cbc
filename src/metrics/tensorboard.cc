#include "metrics/tensorboard.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"

namespace augur {
namespace {

constexpr const char* kFileName = "events.out.tfevents.0.augur";
constexpr size_t kHeader = 12, kFooter = 4;  // length and its checksum; the checksum of the data

// Protobuf's wire format: a key (field number, wire type), then the value.
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
// Event: wall_time, step, file_version, summary. Summary: value. Summary.Value: tag, simple_value.
enum EventField { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum ValueField { kTag = 1, kSimpleValue = 2 };

template <typename T>
void AppendFixed(std::string* out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

template <typename T>
T FixedAt(std::string_view text, size_t offset) {
  T value;
  std::memcpy(&value, text.data() + offset, sizeof(T));
  return value;
}

void AppendVarint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendKey(std::string* out, int field, WireType type) {
  AppendVarint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
}

void AppendBytes(std::string* out, int field, std::string_view bytes) {
  AppendKey(out, field, kBytes);
  AppendVarint(out, bytes.size());
  out->append(bytes);
}

std::string EventHead(int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  AppendKey(&event, kWallTime, kFixed64);
  AppendFixed(&event, now.count());
  AppendKey(&event, kStep, kVarint);
  AppendVarint(&event, static_cast<uint64_t>(step));
  return event;
}

std::string Record(std::string_view data) {
  const auto masked = [](std::string_view bytes) {
    const uint32_t crc = Crc32c(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  std::string record;
  AppendFixed(&record, static_cast<uint64_t>(data.size()));
  AppendFixed(&record, masked(record));
  record += data;
  AppendFixed(&record, masked(data));
  return record;
}

uint64_t ReadVarint(std::string_view text, size_t* offset) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && *offset < text.size(); shift += 7) {
    const auto byte = static_cast<uint8_t>(text[(*offset)++]);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

// The step of an event as written above: wall time, then step.
int64_t StepOfEvent(std::string_view event) {
  size_t offset = 1 + sizeof(double) + 1;
  return event.size() <= offset ? 0 : static_cast<int64_t>(ReadVarint(event, &offset));
}

// The records of `text` that are whole and at or before `last_step`.
std::string KeptRecords(std::string_view text, int64_t last_step) {
  std::string kept;
  while (text.size() >= kHeader + kFooter) {
    const auto length = FixedAt<uint64_t>(text, 0);
    if (length > text.size() - kHeader - kFooter) break;
    const std::string_view record = text.substr(0, kHeader + length + kFooter);
    const std::string_view data = record.substr(kHeader, length);
    if (record != Record(data)) break;
    if (StepOfEvent(data) <= last_step) kept += record;
    text.remove_prefix(record.size());
  }
  return kept;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory, int64_t last_step)
    : path_(directory / kFileName) {
  std::filesystem::create_directories(directory);
  std::string kept;
  if (std::filesystem::exists(path_)) kept = KeptRecords(ReadFile(path_), last_step);
  if (kept.empty()) {
    std::string event = EventHead(0);
    AppendBytes(&event, kFileVersion, "brain.Event:2");
    kept = Record(event);
  }
  WriteFileAtomically(path_, kept);
  size_ = kept.size();
}

void TensorBoardWriter::Write(int64_t step, const Metrics& metrics) {
  std::string summary;
  for (const auto& [name, figure] : metrics) {
    if (!std::isfinite(figure)) continue;
    std::string value;
    AppendBytes(&value, kTag, name);
    AppendKey(&value, kSimpleValue, kFixed32);
    AppendFixed(&value, static_cast<float>(figure));
    AppendBytes(&summary, 1, value);
  }
  std::string event = EventHead(step);
  AppendBytes(&event, kSummary, summary);
  const std::string record = Record(event);
  // A write that failed half way, on a full disk, leaves bytes that nothing after them could be read past.
  if (std::filesystem::file_size(path_) != size_) std::filesystem::resize_file(path_, size_);
  std::ofstream file(path_, std::ios::binary | std::ios::app);
  if (!(file << record) || !file.flush()) {
    throw Error(path_.string(), std::strerror(errno), "check that the directory exists and has space left");
  }
  size_ += record.size();
}

}  // namespace augur
