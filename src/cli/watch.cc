// augur watch: the report's page, live.
#include "report/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "report/server.h"

namespace augur {
namespace {

struct WatchFlags {
  std::vector<std::string> runs;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  bool token = false;
};

std::string RandomToken() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) token += fmt::format("{:08x}", random());
  return token;
}

// As a browser reaches it; an address that stands for all is shown by the machine's name.
std::string UrlHost(const std::string& host) {
  if (host == "0.0.0.0" || host == "::") {
    char name[256] = "";
    return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "127.0.0.1";
  }
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

void RunWatch(const WatchFlags& flags) {
  LiveRuns watch(RunsIn(flags.runs));
  ServerOptions options{flags.host, flags.port, ""};
  if (flags.token || !IsLoopback(flags.host)) options.token = RandomToken();
  Serve(
      options, [&](const std::string& target) { return watch.Answer(target); },
      [&](uint16_t port) {
        const std::string token = options.token.empty() ? "" : "?token=" + options.token;
        fmt::print("http://{}:{}/{} (Ctrl-C ends it)\n", UrlHost(flags.host), port, token);
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
  command
      ->add_option("--host", flags->host,
                   "Address to listen on; 0.0.0.0 for every address of this machine. Any but 127.0.0.1 "
                   "implies --token")
      ->capture_default_str();
  command->add_flag(
      "--token", flags->token,
      "Answer only requests that carry a random token, which the printed URL holds: for a machine with "
      "other users, and behind a proxy (JupyterHub, VS Code, Colab)");
  command->footer(
      "The report's page, which grows while the runs train: curves, what the mask did, single tokens, the "
      "time left.\n"
      "It is served to this machine alone (127.0.0.1) and changes nothing. From elsewhere: ssh -L "
      "8000:127.0.0.1:8000\n"
      "HOST.\n\nExample: augur watch runs/quickstart runs/clip\n");
  command->callback([flags] { RunWatch(*flags); });
}

}  // namespace augur
