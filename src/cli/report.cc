// augur report: one HTML page about runs.
#include "report/report.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "report/run_data.h"

namespace augur {
namespace {

struct ReportFlags {
  std::vector<std::string> runs;
  std::string out;
};

// A name that was mistyped must not cost a file.
void RefuseOtherFile(const std::filesystem::path& out) {
  if (!std::filesystem::is_regular_file(out) || std::filesystem::is_empty(out) || IsReport(out)) return;
  throw Error(out.string(), "exists and is not a page that augur report wrote",
              "remove it, or name another file with --output");
}

void RunReport(const ReportFlags& arguments) {
  const std::vector<std::filesystem::path> runs(arguments.runs.begin(), arguments.runs.end());
  std::filesystem::path out = arguments.out;
  if (out.empty()) out = runs.size() == 1 ? runs[0] / "report.html" : std::filesystem::path("report.html");
  for (const std::filesystem::path& run : runs) {
    for (const char* name : kRunFiles) RefuseInput(out.string(), {{(run / name).string()}}, "--output");
  }
  RefuseOtherFile(out);
  WriteReport(runs, out);
  fmt::print("{}\n", out.string());
}

}  // namespace

void AddReportCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("report", "Write one HTML page about one or more runs");
  command->footer(
      "The page stands alone: no network, any browser, light and dark. It shows the curves of all\n"
      "runs together, what the mask did, and single tokens with the reason of each decision. What a\n"
      "run directory lacks is named on the page.\n\n"
      "Example: augur report runs/quickstart runs/clip -o report.html\n");
  const auto arguments = std::make_shared<ReportFlags>();
  command->add_option("RUN", arguments->runs, "Run directories")->required();
  command->add_option(
      "-o,--output", arguments->out,
      "The page to write; by default report.html, in the run directory where there is one run. A file that "
      "is no such page is not overwritten");
  command->callback([arguments] { RunReport(*arguments); });
}

}  // namespace augur
