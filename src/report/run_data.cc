#include "report/run_data.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/run_directory.h"
#include "base/utf8.h"
#include "base/yaml.h"
#include "metrics/json_lines.h"
#include "report/series.h"
#include "report/viewer_tokens.h"

namespace augur {
namespace {

constexpr size_t kLongestConfig = 1 << 20;
constexpr const char* kStudies[] = {"analysis.json", "compare.json", "frontier.json"};

std::string NodeText(const YamlNode& node) {
  std::string text = node.scalar;
  for (const YamlNode& item : node.items) text += (text.empty() ? "" : ", ") + NodeText(item);
  return text;
}

// Of config.yaml's path.
Json ReadConfig(const std::filesystem::path& path, Notes* notes) {
  if (!std::filesystem::is_regular_file(path)) {
    notes->push_back("no config.yaml: model, mask and seed are unknown");
    return nullptr;
  }
  Json config = Json::object();
  try {
    const std::string text = ReadFile(path);
    if (text.size() > kLongestConfig) throw Error("config.yaml", "longer than 1 MiB", "");
    for (const auto& [section, content] : ParseYaml(text, "config.yaml").entries) {
      const std::string name = LossyUtf8(section.scalar);
      if (!content.is_map()) config[name] = LossyUtf8(NodeText(content));
      for (const auto& [key, value] : content.entries) {
        config[name + "." + LossyUtf8(key.scalar)] = LossyUtf8(NodeText(value));
      }
    }
  } catch (const std::exception& error) {
    notes->push_back("config.yaml is damaged: " + Printable(error.what()));
  }
  return config;
}

// An unfinished run says how far it came.
void NoteProgress(const Json& config, const Json& metrics, Notes* notes) {
  if (!config.is_object() || !config.contains("train.steps") || metrics.is_null()) return;
  const int64_t last = metrics["steps"].back().get<int64_t>();
  const std::string& wanted = config["train.steps"].get_ref<const std::string&>();
  char* end = nullptr;
  const long long steps = std::strtoll(wanted.c_str(), &end, 10);
  if (end != wanted.c_str() && last < steps) {
    notes->push_back(fmt::format("unfinished: {} of {} steps", last, steps));
  }
}

bool IsStudy(const std::filesystem::path& run) {
  return std::ranges::any_of(kStudies, [&](const char* name) { return std::filesystem::exists(run / name); });
}

}  // namespace

Json ReadRunConfig(const std::filesystem::path& run, Notes* notes) {
  return ReadConfig(run / "config.yaml", notes);
}

Json ReadRun(const std::filesystem::path& run, const RunLimits& limits) {
  if (!std::filesystem::is_directory(run)) {
    throw Error(run.string(), std::filesystem::exists(run) ? "is no directory" : "does not exist",
                "name a run directory, such as augur train makes");
  }
  const auto exists = [&](const char* name) { return std::filesystem::exists(run / name); };
  if (IsCheckpoint(run)) throw Error(run.string(), "is a checkpoint", "name the run that it belongs to");
  if (std::ranges::none_of(kRunFiles, exists)) {
    throw Error(
        run.string(), "is no run: it holds neither config.yaml nor metrics.jsonl",
        "name the directory of a run, an analysis, a comparison or a frontier, such as runs/quickstart");
  }
  Notes notes;
  Json json;
  const std::filesystem::path full = std::filesystem::weakly_canonical(run);
  json["name"] = LossyUtf8(full.filename().string());
  json["path"] = LossyUtf8(run.string());
  // A study need not have trained anything itself.
  const auto expected = [&](const char* name) {
    return !IsStudy(run) || std::filesystem::exists(run / name);
  };
  json["config"] = expected("config.yaml") ? ReadConfig(run / "config.yaml", &notes) : Json();
  json["summary"] = ReadJsonFile(run / "summary.json", &notes);
  json["analysis"] = ReadJsonFile(run / "analysis.json", &notes);
  json["compare"] = ReadJsonFile(run / "compare.json", &notes);
  json["frontier"] = ReadJsonFile(run / "frontier.json", &notes);
  if (limits.only_facts) {
    json["notes"] = notes;
    return json;
  }
  json["metrics"] = expected("metrics.jsonl") ? ReadSeries(run, limits.steps, &notes) : Json();
  json["points"] = ReadPoints(run, limits.points, &notes);
  json["tokens"] = ReadViewerTokens(run, limits.token_bytes, &notes);
  NoteProgress(json["config"], json["metrics"], &notes);
  if (json["metrics"].is_object() && json["tokens"].is_null()) {
    notes.push_back("no tokens.jsonl: nothing for the token viewer");
  }
  json["notes"] = notes;
  return json;
}

}  // namespace augur
