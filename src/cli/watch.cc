// augur watch: the report's page, live.
#include "report/watch.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace augur {
namespace {

struct WatchFlags {
  std::vector<std::string> runs;
  uint16_t port = 8000;
};

void RunWatch(const WatchFlags& flags) {
  LiveRuns watch(RunsIn(flags.runs));
  ServeLocally(
      flags.port, [&](const std::string& target) { return watch.Answer(target); },
      [](uint16_t port) {
        fmt::print("http://127.0.0.1:{}/ (Ctrl-C ends it)\n", port);
        std::fflush(stdout);
      });
}

}  // namespace

void AddWatchCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("watch", "Show runs in a browser while they train");
  const auto flags = std::make_shared<WatchFlags>();
  command->add_option("RUN", flags->runs, "Run directories, or directories that hold some")->required();
  command->add_option("--port", flags->port, "Where to serve the page; 0 takes a free port")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->footer(
      "The report's page, which grows while the runs train: curves, what the mask did, single tokens, the "
      "time left.\n"
      "It is served to this machine alone (127.0.0.1) and changes nothing. From elsewhere: ssh -L "
      "8000:127.0.0.1:8000\n"
      "HOST.\n\nExample: augur watch runs/quickstart runs/clip\n");
  command->callback([flags] { RunWatch(*flags); });
}

}  // namespace augur
