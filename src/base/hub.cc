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
constexpr std::string_view kModel = "model", kDataSet = "dataset";  // as _hub.py calls them
constexpr std::string_view kDataSets = "datasets/";                 // as huggingface_hub writes addresses

struct HubName {
  std::string kind;  // kModel or kDataSet
  std::string name, revision, rest;
  std::string ToString(const std::string& commit) const {
    return fmt::format("{}{}{}{}{}{}", kind == kDataSet ? kScheme : "", name, commit.empty() ? "" : "@",
                       commit, rest.empty() ? "" : "/", rest);
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
    std::optional<HubName> name = ParseName(path.substr(kScheme.size()), std::string(kModel));
    if (!name || !name->rest.empty()) {
      throw Error(path, "is no model of the hub", "write hf://Org/Name or hf://Org/Name@REVISION");
    }
    return name;
  }
  if (fs::exists(path)) return std::nullopt;
  std::optional<HubName> name = ParseName(path, std::string(kModel));
  // Where there is a directory of the first part's name, it is a path that was misspelt.
  if (!name || !name->rest.empty() || fs::exists(path.substr(0, path.find('/')))) return std::nullopt;
  return name;
}

std::optional<HubName> DataName(std::string_view path) {
  if (!path.starts_with(kScheme)) return std::nullopt;
  std::string_view address = path.substr(kScheme.size());
  if (address.starts_with(kDataSets) && std::ranges::count(address, '/') > 1)
    address.remove_prefix(kDataSets.size());
  std::optional<HubName> name = ParseName(address, std::string(kDataSet));
  if (!name || !StaysBelow(name->rest))
    throw Error(path, "is no data set of the hub",
                "write hf://Org/Name, hf://Org/Name@REVISION or with /PATH");
  return name;
}

struct Snapshot {
  std::string commit;
  std::string path;                // of a model
  std::vector<std::string> files;  // of a data set
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
  const std::string where = name.ToString(name.revision);
  std::vector<std::string> arguments = {name.kind, name.name, name.revision.empty() ? "main" : name.revision};
  if (name.kind == kDataSet) arguments.push_back(name.rest);
  const ChildProcess child = StartChild(PythonScript("_hub.py", arguments, where), {}, where);
  std::string answer;
  try {
    answer = ReadAll(child.fd);
  } catch (const Stopped&) {
    EndChild(child);
    throw;
  }
  EndChild(child);
  const Json found = answer.empty() ? Json::object() : ParseJson(answer, where);
  if (!found.contains("revision")) {
    throw Error(where, found.value("fault", "cannot be looked up in the hub's cache"),
                found.value("remedy", "name a local path"));
  }
  return {found["revision"].get<std::string>(), found.value("path", ""),
          found.value("files", std::vector<std::string>())};
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
  const auto key = [&](const std::string& revision) { return name.kind + name.ToString(revision); };
  const auto known = answers.found.find(key(name.revision));
  if (known != answers.found.end()) return known->second;
  const Snapshot snapshot = Ask(name);
  answers.found[key(snapshot.commit)] = snapshot;  // as it is called from now on
  return answers.found[key(name.revision)] = snapshot;
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
  return name ? Find(*name).files : std::vector{path};
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
