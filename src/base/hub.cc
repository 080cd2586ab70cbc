#include "base/hub.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/child_process.h"
#include "base/error.h"
#include "base/json.h"
#include "base/python.h"
#include "base/stop_signals.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kScheme = "hf://";
constexpr std::string_view kDataSets = "datasets/";  // as huggingface_hub writes addresses

struct HubName {
  std::string kind;  // "models" or "datasets", as the cache calls them
  std::string name, revision, rest;
  std::string ToString(const std::string& commit) const {
    return fmt::format("{}{}@{}{}{}", kind == "datasets" ? kScheme : "", name, commit,
                       rest.empty() ? "" : "/", rest);
  }
};

bool IsNamePart(std::string_view part) {
  return !part.empty() && part != "." && part != ".." && std::ranges::all_of(part, [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

// A commit, a branch without a slash, or one that the hub makes: "refs/pr/3", "refs/convert/parquet".
size_t RevisionLength(std::string_view text) {
  size_t end = text.find('/');
  for (int more = text.starts_with("refs/") ? 2 : 0; more > 0 && end != std::string_view::npos; --more)
    end = text.find('/', end + 1);
  return std::min(end, text.size());
}

bool IsRevision(std::string_view text) {
  const size_t slash = text.find('/');
  return IsNamePart(text.substr(0, slash)) &&
         (slash == std::string_view::npos || IsRevision(text.substr(slash + 1)));
}

// "Org/Name[@REVISION][/REST]".
std::optional<HubName> ParseName(std::string_view text, std::string kind) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const size_t end = std::min(text.find_first_of("@/", slash + 1), text.size());
  HubName name{std::move(kind), std::string(text.substr(0, end)), "", ""};
  if (!IsNamePart(text.substr(0, slash)) || !IsNamePart(text.substr(slash + 1, end - slash - 1)))
    return std::nullopt;
  text.remove_prefix(end);
  if (text.starts_with('@')) {
    text.remove_prefix(1);
    name.revision = text.substr(0, RevisionLength(text));
    if (!IsRevision(name.revision)) return std::nullopt;
    text.remove_prefix(name.revision.size());
  }
  if (text.starts_with('/')) name.rest = text.substr(1);
  return name;
}

// Whether a path leads nowhere but to files below the folder that it is put behind.
bool StaysBelow(const fs::path& rest) {
  return rest.is_relative() && std::ranges::find(rest, "..") == rest.end();
}

std::optional<HubName> ModelName(std::string_view path) {
  if (path.starts_with(kScheme)) {
    std::optional<HubName> name = ParseName(path.substr(kScheme.size()), "models");
    if (!name || !name->rest.empty()) {
      throw Error(path, "is no model of the hub", "write hf://Org/Name or hf://Org/Name@REVISION");
    }
    return name;
  }
  if (fs::exists(path)) return std::nullopt;
  std::optional<HubName> name = ParseName(path, "models");
  // Where there is a directory of the first part's name, it is a path that was misspelt.
  if (!name || !name->rest.empty() || fs::exists(path.substr(0, path.find('/')))) return std::nullopt;
  return name;
}

std::optional<HubName> DataName(std::string_view path) {
  if (!path.starts_with(kScheme)) return std::nullopt;
  std::string_view address = path.substr(kScheme.size());
  if (address.starts_with(kDataSets) && std::ranges::count(address, '/') > 1)
    address.remove_prefix(kDataSets.size());
  std::optional<HubName> name = ParseName(address, "datasets");
  if (!name || !StaysBelow(name->rest))
    throw Error(path, "is no data set of the hub",
                "write hf://Org/Name, hf://Org/Name@REVISION or with /PATH");
  return name;
}

struct Snapshot {
  std::string path, commit;
};

// A download may take long; CheckStop ends it.
std::string ReadAll(int fd) {
  constexpr int kMilliseconds = 100;
  std::string text;
  char buffer[4096];
  pollfd next{.fd = fd, .events = POLLIN, .revents = 0};
  for (ssize_t got = 1; got > 0;) {
    CheckStop();
    if (::poll(&next, 1, kMilliseconds) <= 0) continue;
    got = ::read(fd, buffer, sizeof buffer);
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

Snapshot Ask(const HubName& name) {
  std::vector<std::string> arguments = {name.kind, name.name};
  if (!name.revision.empty()) arguments.push_back(name.revision);
  const ChildProcess child = StartChild(PythonScript("_hub.py", arguments, name.name), {}, name.name);
  std::string answer;
  try {
    answer = ReadAll(child.fd);
  } catch (const Stopped&) {
    EndChild(child);
    throw;
  }
  EndChild(child);
  const Json found = answer.empty() ? Json::object() : ParseJson(answer, name.name);
  if (!found.contains("path")) {
    throw Error(name.name, found.value("fault", "cannot be looked up in the hub's cache"),
                found.value("remedy", "name a local path"));
  }
  return {found["path"].get<std::string>(), found["revision"].get<std::string>()};
}

// What was asked for so far.
struct Answers {
  std::mutex mutex;
  std::map<std::string, Snapshot> found;
};
Answers& KnownAnswers() {
  static Answers answers;
  return answers;
}

Snapshot Find(const HubName& name) {
  Answers& answers = KnownAnswers();
  const std::lock_guard lock(answers.mutex);
  const std::string key = fmt::format("{} {} {}", name.kind, name.name, name.revision);
  const auto known = answers.found.find(key);
  return known != answers.found.end() ? known->second : answers.found.emplace(key, Ask(name)).first->second;
}

bool IsDataFile(const fs::path& path) {
  return path.extension() == ".parquet" || path.extension() == ".jsonl";
}

std::vector<std::string> FilesUnder(const fs::path& folder) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && IsDataFile(entry.path())) files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  return files;
}

// Files of a split lie as data/train-00000-of-00001.parquet, train.jsonl or in a folder of its name.
bool IsOfSplit(const fs::path& file, const std::string& split) {
  const std::string stem = file.stem().string();
  if (stem == split || stem.starts_with(split + "-") || stem.starts_with(split + "_")) return true;
  return file.has_parent_path() && file.parent_path().filename() == split;
}

constexpr const char* kSplits[] = {"train", "test", "validation", "valid", "val", "dev", "eval"};

std::vector<std::string> FilesOfSplit(const fs::path& folder, const std::string& split) {
  std::vector<std::string> files = FilesUnder(folder);
  std::erase_if(files, [&](const std::string& file) {
    return !IsOfSplit(fs::path(file).lexically_relative(folder), split);
  });
  return files;
}

// The split train where files are named by split, and all of them where not.
std::vector<std::string> TrainingFiles(const std::string& path, const fs::path& folder) {
  const std::vector<std::string> files = FilesOfSplit(folder, "train");
  if (!files.empty()) return files;
  const bool is_split = std::ranges::find(kSplits, folder.filename()) != std::end(kSplits);
  for (const char* split : kSplits) {
    if (is_split || FilesOfSplit(folder, split).empty()) continue;
    throw Error(path, fmt::format("the cache has files of the split {}, and none of train", split),
                fmt::format("name the split that is meant ({}/{}), or fetch the whole: "
                            "hf download --repo-type dataset {}",
                            path, split, HubDataName(path)));
  }
  return FilesUnder(folder);
}

bool IsCommit(const std::string& revision) {
  return revision.size() == 40 && revision.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The first of the names before that is of the same model or data set, unless another commit is asked for.
template <typename Parse>
std::string Pin(const std::string& path, std::span<const std::string> before, Parse parse) {
  const std::optional<HubName> name = parse(path);
  if (!name) return path;
  for (const std::string& pinned : before) {
    const std::optional<HubName> old = parse(pinned);
    if (!old || old->name != name->name || old->rest != name->rest) continue;
    if (!IsCommit(name->revision) || name->revision == old->revision) return pinned;
  }
  return name->ToString(Find(*name).commit);
}

}  // namespace

void ForgetHub() {
  Answers& answers = KnownAnswers();
  const std::lock_guard lock(answers.mutex);
  answers.found.clear();
}

std::string ModelDirectory(const std::string& path) {
  const std::optional<HubName> name = ModelName(path);
  return name ? Find(*name).path : path;
}

std::vector<std::string> DataFiles(const std::string& path) {
  const std::optional<HubName> name = DataName(path);
  if (!name) return {path};
  const fs::path root = Find(*name).path, place = root / name->rest;
  if (fs::is_regular_file(place)) return {place.string()};
  const fs::path split = fs::path(name->rest).filename(), folder = place.parent_path();
  const std::vector<std::string> files = fs::is_directory(place)    ? TrainingFiles(path, place)
                                         : fs::is_directory(folder) ? FilesOfSplit(folder, split.string())
                                                                    : std::vector<std::string>();
  if (files.empty()) {
    throw Error(path, fmt::format("the data set has no '{}' in {}", name->rest, root.string()),
                "name a file, a folder or a split that is there");
  }
  return files;
}

std::string HubDataName(const std::string& path) { return DataName(path)->name; }

std::string PinModel(const std::string& path, std::span<const std::string> before) {
  return Pin(path, before, ModelName);
}

std::string PinData(const std::string& path, std::span<const std::string> before) {
  return Pin(path, before, DataName);
}

std::optional<HubModel> AsHubModel(const std::string& path) {
  const std::optional<HubName> name = ModelName(path);
  return name ? std::optional<HubModel>({name->name, name->revision}) : std::nullopt;
}

}  // namespace augur
