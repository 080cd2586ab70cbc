#include "report/viewer_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "base/file.h"
#include "base/random.h"
#include "base/utf8.h"
#include "metrics/token_record.h"

namespace augur {
namespace {

// How much longer a line of tokens.jsonl is than what the page keeps of it, about.
constexpr double kLineOverPage = 1.5;
constexpr size_t kBytesPerToken = 1000;  // on the page, at most, about
constexpr size_t kLongestText = 20000;   // of a prompt or answer
constexpr uint64_t kSampleKey = 0x746f6b656e73;

// Six digits; the page shows four.
Json Number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.5e}", value).c_str(),
                     nullptr);  // stod takes subnormal numbers for errors
}

int Flags(const TokenRecord& token) {
  return (token.keep ? 1 : 0) | (token.outside ? 2 : 0) | (token.disagree ? 4 : 0) | (token.missing ? 8 : 0);
}

struct ShownResponse {
  size_t size = 0;
  Json json;
  std::map<int32_t, std::string> texts;
};

Json ShownToken(const TokenRecord& token, bool with_support, std::map<int32_t, std::string>* texts) {
  (*texts)[token.id] = token.text;
  Json support = Json::array();
  if (with_support) {
    for (const SupportAtom& atom : token.support) {
      (*texts)[atom.id] = atom.text;
      support.push_back(atom.id);
      support.push_back(Number(atom.mu));
      support.push_back(Number(atom.pi));
    }
  }
  return {token.id,
          Number(token.ratio),
          Number(token.divergence),
          Number(token.direction),
          Number(token.local),
          Number(token.global),
          Number(token.advantage),
          Flags(token),
          Number(token.mu_tail),
          Number(token.pi_tail),
          std::move(support)};
}

// The beginning of a text, cut between characters.
std::string Beginning(const std::string& text) {
  if (text.size() <= kLongestText) return text;
  const std::string_view part = std::string_view(text).substr(0, kLongestText);
  return std::string(part.substr(0, part.size() - IncompleteUtf8Suffix(part))) + " …";
}

ShownResponse Show(const ResponseRecord& record, bool all_supports, size_t budget) {
  const size_t most_tokens = std::max<size_t>(64, budget / kBytesPerToken);
  ShownResponse shown;
  Json tokens = Json::array();
  for (const TokenRecord& token : record.tokens) {
    if (tokens.size() == most_tokens) break;
    tokens.push_back(ShownToken(token, all_supports || token.outside, &shown.texts));
  }
  shown.json = {{"step", record.step},
                {"source", record.data_source},
                {"prompt", Beginning(record.prompt)},
                {"answer", Beginning(record.answer)},
                {"reward", Number(record.reward)},
                {"advantage", Number(record.advantage)},
                {"finish", record.finish},
                {"rule", record.rule},
                {"delta", Number(record.delta)},
                {"length", record.tokens.size()},
                {"tokens", std::move(tokens)}};
  shown.size = shown.json.dump(-1, ' ', true).size();
  return shown;
}

// A line's step, which stands before its tokens. The text `"step":` occurs in no string: there its quotes are
// escaped.
std::optional<int64_t> StepAt(std::string_view text, size_t at) {
  constexpr std::string_view kKey = "\"step\":";
  const size_t end = std::min(text.find('\n', at), text.size());
  const size_t found = text.substr(at, end - at).find(kKey);
  if (found == std::string_view::npos) return std::nullopt;
  int64_t step = 0;
  const size_t digits = std::min(text.find_first_not_of(' ', at + found + kKey.size()), end);
  const auto read = std::from_chars(text.data() + digits, text.data() + end, step);
  const bool whole = read.ec == std::errc() && read.ptr != text.data() + text.size();  // not torn amid digits
  return whole ? std::optional(step) : std::nullopt;
}

// Where the first line of `step` or a later one begins; the end where there is none. Steps rise from line to
// line.
size_t FirstLineFrom(std::string_view text, int64_t step) {
  size_t low = 0, high = text.size();  // the line begins in [low, high]
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const size_t line = middle == 0 ? 0 : std::min(text.find('\n', middle - 1), text.size() - 1) + 1;
    if (line >= high) {
      high = middle;
    } else if (StepAt(text, line).value_or(INT64_MIN) < step) {
      low = text.find('\n', line) + 1;
    } else {
      high = line;
    }
  }
  return low;
}

std::optional<int64_t> LastStepUpTo(std::string_view text, int64_t step) {
  const size_t after = FirstLineFrom(text, step == INT64_MAX ? step : step + 1);
  if (after == 0) return std::nullopt;
  const size_t before = after < 2 ? std::string_view::npos : text.rfind('\n', after - 2);
  return StepAt(text, before == std::string_view::npos ? 0 : before + 1);
}

// A response's line in tokens.jsonl.
struct RecordedLine {
  int64_t step = 0;
  uint32_t draw = 0;  // those with the smallest are shown
  size_t number = 0;  // from 1
  std::string_view text;
};

ResponseRecord ParseResponse(const RecordedLine& line) {
  const std::string where = fmt::format("{}:{}", kTokenRecordsFile, line.number);
  return ResponseFromJson(ParseJson(line.text, where), where);
}

std::vector<RecordedLine> FindLines(std::string_view text, DamagedLines* damaged) {
  std::vector<RecordedLine> lines;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    RecordedLine line{.number = ++number, .text = text.substr(at, end - at)};
    at = end + 1;
    if (line.text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      const std::optional<int64_t> step = StepAt(line.text, 0);
      line.step = step ? *step : ParseResponse(line).step;
    } catch (const Error& error) {
      damaged->Add(error);
      continue;
    }
    // Several responses share a step; only a step further back is a repetition.
    if (!lines.empty() && line.step < lines.back().step) ForgetFrom(line.step, &lines);
    line.draw = Philox::At(kSampleKey, number, 0).word[0];
    lines.push_back(line);
  }
  return lines;
}

std::string_view WholeLines(const MappedFile& file) {
  return file.text().substr(0, file.text().rfind('\n') + 1);
}

Json Packed(std::vector<ShownResponse> responses, int64_t recorded, bool all_supports) {
  Json vocabulary = Json::object(), shown = Json::array();
  for (ShownResponse& response : responses) {
    for (const auto& [id, text] : response.texts) vocabulary[std::to_string(id)] = text;
    shown.push_back(std::move(response.json));
  }
  return {{"recorded", recorded},
          {"whole_support", all_supports},
          {"vocabulary", std::move(vocabulary)},
          {"responses", std::move(shown)}};
}

}  // namespace

Json ReadViewerTokens(const std::filesystem::path& run, size_t budget, Notes* notes) {
  const std::filesystem::path path = run / kTokenRecordsFile;
  if (!std::filesystem::is_regular_file(path)) return nullptr;
  const MappedFile file(path);
  const bool all_supports =
      static_cast<double>(file.text().size()) <= kLineOverPage * static_cast<double>(budget);
  DamagedLines damaged(path.filename().string());
  std::vector<RecordedLine> lines = FindLines(file.text(), &damaged);
  // Only what is shown is parsed: a file of a long run holds far more than a page.
  std::ranges::sort(lines, {}, &RecordedLine::draw);
  std::vector<std::pair<size_t, ShownResponse>> shown;  // with their places in the file
  size_t held = 0;
  bool all = true;
  for (const RecordedLine& line : lines) {
    try {
      ShownResponse response = Show(ParseResponse(line), all_supports, budget);
      all = shown.empty() || held + response.size <= budget;
      if (!all) break;
      held += response.size;
      shown.emplace_back(line.number, std::move(response));
    } catch (const Error& error) {
      damaged.Add(error);
    }
  }
  damaged.Note(notes);
  if (shown.empty()) return nullptr;
  if (!all_supports) {
    notes->push_back(
        "token viewer: to keep the page small, probabilities are shown for tokens outside the trust region "
        "only");
  }
  if (!all) {
    notes->push_back(fmt::format(
        "token viewer: to keep the page small, {} of {} recorded responses are shown, drawn at random",
        shown.size(), lines.size()));
  }
  std::ranges::sort(shown, {}, &std::pair<size_t, ShownResponse>::first);
  std::vector<ShownResponse> responses;
  for (auto& [_, response] : shown) responses.push_back(std::move(response));
  const size_t recorded = all ? responses.size() : lines.size();
  return Packed(std::move(responses), static_cast<int64_t>(recorded), all_supports);
}

std::vector<int64_t> RecordedSteps(const std::filesystem::path& run, size_t limit) {
  const std::filesystem::path path = run / kTokenRecordsFile;
  if (!std::filesystem::is_regular_file(path)) return {};
  const MappedFile file(path);
  const std::string_view text = WholeLines(file);
  const auto newest = LastStepUpTo(text, INT64_MAX), oldest = StepAt(text, 0);
  if (!newest || !oldest) return {};
  const int64_t stride = 1 + (*newest - *oldest) / static_cast<int64_t>(limit);
  std::vector<int64_t> steps;
  for (int64_t at = *oldest; at < *newest; at += stride) {
    const int64_t found = LastStepUpTo(text, at).value_or(at);
    if (steps.empty() || found > steps.back()) steps.push_back(found);
  }
  steps.push_back(*newest);
  return steps;
}

Json ReadTokensOfStep(const std::filesystem::path& run, int64_t step, size_t budget) {
  const std::filesystem::path path = run / kTokenRecordsFile;
  if (!std::filesystem::is_regular_file(path)) return nullptr;
  const MappedFile file(path);
  const std::string_view text = WholeLines(file);
  const auto wanted = LastStepUpTo(text, step);
  if (!wanted) return nullptr;
  std::vector<ShownResponse> responses;
  size_t held = 0;
  int64_t recorded = 0;
  for (size_t at = FirstLineFrom(text, *wanted); at < text.size();) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if (StepAt(line, 0).value_or(*wanted) != *wanted) break;
    at += line.size() + 1;
    try {
      const ResponseRecord record = ResponseFromJson(ParseJson(line, ""), "");
      if (record.step != *wanted) break;
      ShownResponse response = Show(record, true, budget);
      ++recorded;
      if (!responses.empty() && held + response.size > budget) continue;
      held += response.size;
      responses.push_back(std::move(response));
    } catch (const Error&) {
      continue;  // a damaged line is left out
    }
  }
  return Packed(std::move(responses), recorded, true);
}

}  // namespace augur
