#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "report/assets.h"
#include "report/run_data.h"

namespace augur {
namespace {

// A JSON text that may stand between <script> tags: only ASCII, and nothing that HTML would read.
std::string ScriptSafe(const Json& json) {
  const std::string plain = json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(plain.size());
  for (const char c : plain) {
    switch (c) {
      case '<':
        safe += "\\u003c";
        break;
      case '>':
        safe += "\\u003e";
        break;
      case '&':
        safe += "\\u0026";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  return text;
}

Json NotesAboutAll(const std::vector<Json>& runs) {
  std::set<std::string> models;
  for (const Json& run : runs) {
    if (run["config"].is_object() && run["config"].contains("model.path")) {
      models.insert(run["config"]["model.path"].get<std::string>());
    }
  }
  Json notes = Json::array();
  if (models.size() > 1) {
    std::string names;
    for (const std::string& model : models) names += (names.empty() ? "" : ", ") + model;
    notes.push_back("The runs are of different models (" + names +
                    "): their curves are not comparable as they stand.");
  }
  return notes;
}

// Of a comparison: the runs, as "ARM/seed-N", that have a page of their own, and the names that lead from the
// folder of this page to the comparison.
void AddRunPages(const std::filesystem::path& path, const std::filesystem::path& out, Json* run) {
  Json pages = Json::array(), way = Json::array();
  std::error_code none;  // a folder that may not be read has no pages
  for (const auto& arm : std::filesystem::directory_iterator(path, none)) {
    for (const auto& seed : std::filesystem::directory_iterator(arm, none)) {
      if (std::filesystem::exists(seed.path() / "report.html", none))
        pages.push_back(LossyUtf8((arm.path().filename() / seed.path().filename()).string()));
    }
  }
  const auto folder = std::filesystem::weakly_canonical(std::filesystem::absolute(out)).parent_path();
  for (const auto& name : std::filesystem::weakly_canonical(path).lexically_relative(folder))
    way.push_back(LossyUtf8(name.string()));
  (*run)["run_pages"] = std::move(pages);
  (*run)["path_from_page"] = std::move(way);
}

Json ReadAll(std::span<const std::filesystem::path> paths, const std::filesystem::path& out, size_t limit) {
  // Half of the page for tokens at first; curves rarely need a tenth.
  RunLimits limits;
  limits.token_bytes = limit / 2 / std::max<size_t>(paths.size(), 1);
  std::vector<Json> runs;
  for (const auto& path : paths) {
    runs.push_back(ReadRun(path, limits));
    if (!runs.back()["compare"].is_null()) AddRunPages(path, out, &runs.back());
  }
  const Json notes = NotesAboutAll(runs);
  return {{"made", Now()}, {"notes", notes}, {"runs", std::move(runs)}};
}

// `connect` is what the page may fetch from: 'none', or 'self', its own server.
std::string Fill(std::string_view data, std::string_view connect) {
  std::string page;
  std::string_view rest = PageTemplate();
  const std::string scripts = fmt::format("{} {}", ChartLibraryHash(), PageScriptHash());
  const std::pair<std::string_view, std::string_view> parts[] = {{"{{connect}}", connect},
                                                                 {"{{style_hash}}", PageStyleHash()},
                                                                 {"{{script_hashes}}", scripts},
                                                                 {"{{style}}", PageStyle()},
                                                                 {"{{data}}", data},
                                                                 {"{{charts}}", ChartLibrary()},
                                                                 {"{{script}}", PageScript()}};
  for (const auto& [mark, part] : parts) {
    const size_t at = rest.find(mark);
    page += rest.substr(0, at);
    page += part;
    rest.remove_prefix(at + mark.size());
  }
  return page += rest;
}

}  // namespace

void WriteReport(std::span<const std::filesystem::path> runs, const std::filesystem::path& out,
                 size_t limit) {
  std::string page = Fill(ScriptSafe(ReadAll(runs, out, limit)), "'none'");
  // Text that must be escaped can take more than was reckoned: then fewer tokens.
  for (size_t share = limit / 2; page.size() > limit && share > limit / 64; share /= 2) {
    page = Fill(ScriptSafe(ReadAll(runs, out, share)), "'none'");
  }
  WriteFileAtomically(out, page);
}

bool IsReport(const std::filesystem::path& file) {
  constexpr size_t kHead = 4096;  // the title is in it
  std::string head(kHead, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(head.data(), kHead);
  head.resize(static_cast<size_t>(stream.gcount()));
  return head.starts_with("<!doctype html>") && head.find("<title>Augur report</title>") != std::string::npos;
}

std::string LivePage(std::vector<Json> runs) {
  const Json notes = NotesAboutAll(runs);
  return Fill(ScriptSafe({{"made", Now()}, {"notes", notes}, {"runs", std::move(runs)}, {"live", true}}),
              "'self'");
}

}  // namespace augur
