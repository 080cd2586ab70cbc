#include "metrics/metrics_file.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "metrics/append_lines.h"

namespace augur {
namespace {

std::optional<int64_t> StepOf(std::string_view line) {
  try {
    const Json object = ParseJson(line, "");
    const Json& step = RequireKey(object, "step", "");
    if (step.is_number_integer()) return step.get<int64_t>();
  } catch (const Error&) {
  }
  return std::nullopt;
}

}  // namespace

void AppendMetrics(const std::filesystem::path& run, int64_t step, const Metrics& metrics) {
  AppendLines(run / kMetricsFile, nlohmann::ordered_json({{"step", step}, {"data", metrics}}).dump() + "\n");
}

int64_t LastStep(const std::filesystem::path& path) {
  int64_t last = -1;
  if (!std::filesystem::exists(path)) return last;
  const std::string text = ReadFile(path);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    last = std::max(last, StepOf(std::string_view(text).substr(begin, end - begin)).value_or(-1));
  }
  return last;
}

void KeepLinesUpToStep(const std::filesystem::path& path, int64_t step) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = ReadFile(path);
  std::string kept;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const std::optional<int64_t> line_step = StepOf(line);
    if (line_step && *line_step <= step) kept.append(line).append("\n");
  }
  if (kept != text) WriteFileAtomically(path, kept);
}

}  // namespace augur
