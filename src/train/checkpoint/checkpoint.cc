#include "train/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/run_directory.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPointer = "latest_checkpointed_iteration.txt";
constexpr std::string_view kPrefix = "global_step_";
constexpr std::string_view kUnfinished = "unfinished_";
constexpr std::string_view kAbandoned = "abandoned-";

// The number after `prefix`, where the name is nothing else.
std::optional<int64_t> NumberAfter(std::string_view prefix, const std::string& name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  int64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, fault] = std::from_chars(name.data() + prefix.size(), end, number);
  return fault == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

// Rising.
std::vector<int64_t> NumbersIn(const fs::path& directory, std::string_view prefix) {
  std::vector<int64_t> numbers;
  if (!fs::is_directory(directory)) return numbers;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (const auto number = NumberAfter(prefix, entry.path().filename().string())) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::string FileChecksum(const MappedFile& file) { return fmt::format("{:016x}", Checksum(file.bytes())); }

void SyncDirectory(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

FileSum SumOf(const fs::path& path) {
  const MappedFile file(path);
  return {file.bytes().size(), FileChecksum(file)};
}

void WriteManifest(const fs::path& directory, const FileSums& known) {
  Json files = Json::object();
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const auto found = known.find(name);
    const FileSum sum = found == known.end() ? SumOf(entry.path()) : found->second;
    files[name] = {{"size", sum.size}, {"xxh64", sum.checksum}};
  }
  WriteFileAtomically(directory / kCheckpointManifest, Json{{"files", files}}.dump(2) + "\n");
}

enum class Check { kAll, kSmallFiles };
constexpr uint64_t kSmallFile = 1 << 16;

std::optional<std::string> WhyFileDamaged(const fs::path& path, const Json& entry, Check check) {
  const std::string name = path.filename().string();
  if (!fs::is_regular_file(path)) return name + " is missing";
  const MappedFile file(path);
  if (entry.at("size").get<uint64_t>() != file.bytes().size()) {
    return fmt::format("{} has {} bytes instead of {}", name, file.bytes().size(), entry.at("size").dump());
  }
  if (check == Check::kSmallFiles && file.bytes().size() > kSmallFile) return std::nullopt;
  if (entry.at("xxh64").get<std::string>() != FileChecksum(file)) return name + " fails its checksum";
  return std::nullopt;
}

}  // namespace

CheckpointStore::CheckpointStore(const fs::path& run) : directory_(run / kCheckpoints) {}

fs::path CheckpointStore::PathOf(int64_t step) const {
  return directory_ / fmt::format("{}{}", kPrefix, step);
}

std::vector<int64_t> CheckpointStore::Steps() const { return NumbersIn(directory_, kPrefix); }

std::optional<int64_t> CheckpointStore::Pointer() const {
  if (!fs::is_regular_file(directory_ / kPointer)) return std::nullopt;
  std::string text = ReadFile(directory_ / kPointer);
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return NumberAfter("", text);
}

void CheckpointStore::Point(int64_t step) const {
  WriteFileAtomically(directory_ / kPointer, fmt::format("{}\n", step));
}

fs::path CheckpointStore::MakeAbandoned() const {
  const std::vector<int64_t> made = NumbersIn(directory_, kAbandoned);
  const fs::path folder = directory_ / fmt::format("{}{}", kAbandoned, made.empty() ? 1 : made.back() + 1);
  fs::create_directories(folder);
  return folder;
}

void CheckpointStore::MoveAfter(int64_t step, const fs::path& folder) const {
  for (const int64_t later : Steps()) {
    if (later > step) fs::rename(PathOf(later), folder / PathOf(later).filename());
  }
  if (step < 0 && fs::exists(directory_ / kPointer)) fs::rename(directory_ / kPointer, folder / kPointer);
  SyncDirectory(directory_);
}

fs::path CheckpointStore::Unfinished(int64_t step) const {
  return directory_ / fmt::format("{}{}{}", kUnfinished, kPrefix, step);
}

void CheckpointStore::Begin(int64_t step) const {
  fs::create_directories(directory_);
  fs::remove_all(Unfinished(step));
  fs::create_directory(Unfinished(step));
}

Error CheckpointStore::GiveUp(int64_t step, const std::exception& fault) const {
  std::error_code ignored;
  fs::remove_all(Unfinished(step), ignored);
  const std::vector<int64_t> steps = Steps();
  return Error(fmt::format("checkpoint of step {}", step), fault.what(),
               steps.empty()
                   ? "no checkpoint has been written yet: make room and start again"
                   : fmt::format("the newest complete one is {}: make room and run the same command "
                                 "to go on from there",
                                 PathOf(steps.back()).string()));
}

void CheckpointStore::Publish(int64_t step, int64_t keep, const FileSums& known) const {
  WriteManifest(Unfinished(step), known);
  SyncDirectory(Unfinished(step));
  Point(step);  // first: a checkpoint behind the pointer would belong to a line that was left
  fs::rename(Unfinished(step), PathOf(step));
  SyncDirectory(directory_);
  std::vector<int64_t> steps = Steps();
  while (keep > 0 && steps.size() > static_cast<size_t>(keep)) {
    const int64_t oldest = steps.front() == step ? steps[1] : steps.front();
    std::erase(steps, oldest);
    // The manifest first: what a crash leaves of it is then seen to be damaged.
    std::error_code ignored;
    fs::remove(PathOf(oldest) / kCheckpointManifest, ignored);
    fs::remove_all(PathOf(oldest), ignored);
  }
}

namespace {

std::optional<std::string> FindDamage(const fs::path& checkpoint, Check check) {
  const fs::path path = checkpoint / kCheckpointManifest;
  if (!fs::is_regular_file(path)) return "manifest.json is missing";
  try {
    const Json manifest = ParseJson(ReadFile(path), path.string());
    const Json& files = RequireKey(manifest, "files", path.string());
    for (const auto& [name, entry] : files.items()) {
      if (name.find('/') != std::string::npos) return "manifest.json names a file elsewhere";
      if (const auto why = WhyFileDamaged(checkpoint / name, entry, check)) return why;
    }
    return files.empty() ? std::optional<std::string>("manifest.json lists no files") : std::nullopt;
  } catch (const std::exception& fault) {
    return fault.what();
  }
}

// The rank that wrote the file: of tensors-R-of-N.safetensors rank R - 1, as long as N are here.
int WriterOf(const std::string& name, int ranks) {
  constexpr std::string_view kPart = "tensors-";
  int number = 1;
  if (name.starts_with(kPart)) {
    std::from_chars(name.data() + kPart.size(), name.data() + name.size(), number);
  }
  return (number - 1) % ranks;
}

// `mine` of every rank, put together.
FileSums GatherSums(const Ranks& ranks, const FileSums& mine) {
  ByteWriter out;
  for (const auto& [name, sum] : mine) {
    out.Put(name);
    out.Put(sum.size);
    out.Put(sum.checksum);
  }
  FileSums all;
  for (const std::string& bytes : ranks.GatherBytes(out.bytes())) {
    for (ByteReader in(bytes); !in.done();) {
      std::string name;
      in.Get(&name);
      FileSum& sum = all[name];
      sum.size = in.Next<uint64_t>();
      in.Get(&sum.checksum);
    }
  }
  return all;
}

}  // namespace

std::optional<std::string> WhyDamaged(const fs::path& checkpoint) {
  return FindDamage(checkpoint, Check::kAll);
}

FileSums SumFilesTogether(const Ranks& ranks, const fs::path& checkpoint) {
  FileSums mine;
  ranks.Together([&] {
    for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint)) {
      const std::string name = entry.path().filename().string();
      if (WriterOf(name, ranks.size()) == ranks.rank()) mine[name] = SumOf(entry.path());
    }
  });
  return GatherSums(ranks, mine);
}

std::optional<std::string> CheckpointStore::WhyDamaged(const fs::path& checkpoint) const {
  const auto found = damaged_.find(checkpoint);
  if (found != damaged_.end()) return found->second;
  return FindDamage(checkpoint, Ranks::World().alone() ? Check::kAll : Check::kSmallFiles);
}

bool CheckpointStore::CheckTogether(const Ranks& ranks, const fs::path& checkpoint) {
  if (ranks.alone()) return true;  // WhyDamaged has read everything
  std::string why;
  ranks.Together([&] {
    const Json manifest = ParseJson(ReadFile(checkpoint / kCheckpointManifest), checkpoint.string());
    int file = 0;
    for (const auto& [name, entry] : manifest.at("files").items()) {
      if (file++ % ranks.size() != ranks.rank()) continue;
      const auto found = WhyFileDamaged(checkpoint / name, entry, Check::kAll);
      if (found && why.empty()) why = *found;
    }
  });
  for (const std::string& found : ranks.GatherBytes(why)) {
    if (!found.empty()) damaged_[checkpoint] = found;
  }
  return !damaged_.contains(checkpoint);
}

std::optional<fs::path> CheckpointStore::FindCurrent(
    const std::function<void(const std::string&)>& warn) const {
  const std::optional<int64_t> pointer = Pointer();
  const std::vector<int64_t> all = Steps();
  std::vector<int64_t> steps = all;
  if (pointer) std::erase_if(steps, [&](int64_t step) { return step > *pointer; });
  if (steps.empty() && !all.empty()) {
    throw Error((directory_ / kPointer).string(),
                fmt::format("says the run stands at step {}, whose checkpoint is gone", *pointer),
                fmt::format("go on from another one with run.resume={}, or begin anew with run.resume=never",
                            all.back()));
  }
  for (; !steps.empty(); steps.pop_back()) {
    const fs::path path = PathOf(steps.back());
    const auto why = WhyDamaged(path);
    if (!why) return path;
    warn(fmt::format("{} is damaged ({}); {}", path.string(), *why,
                     steps.size() > 1 ? "trying the one before it" : "none is left: beginning anew"));
  }
  return std::nullopt;
}

void CheckpointStore::TidyUnfinished() const {
  if (!fs::is_directory(directory_)) return;
  // Pointed to and whole: its process was killed just before the rename.
  const std::optional<int64_t> pointer = Pointer();
  if (pointer && !fs::exists(PathOf(*pointer)) && fs::exists(Unfinished(*pointer)) &&
      !WhyDamaged(Unfinished(*pointer))) {
    fs::rename(Unfinished(*pointer), PathOf(*pointer));
    SyncDirectory(directory_);
  }
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kUnfinished) || name.starts_with(fmt::format("{}.tmp.", kPointer)))
      found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove_all(path);
}

}  // namespace augur
