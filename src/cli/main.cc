// The program `augur`: parses the command line, runs one subcommand, and turns errors into one line and
// exit 2.
#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/exit_code.h"

namespace {

using augur::kInternalError;
using augur::kUserError;

const CLI::App& ChosenCommand(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : *chosen.front();
}

std::vector<std::string> ValidNames(const CLI::App& command, bool flags) {
  std::vector<std::string> names;
  if (flags) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  } else {
    for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(sub->get_name());
    }
  }
  return names;
}

// CLI11 reports what it could not place; add the name the user probably meant.
int ReportParseError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = ChosenCommand(app);
  std::string message = error.what();
  const std::vector<std::string> extras = command.remaining(true);
  if (!extras.empty()) {
    const bool is_flag = extras.front().starts_with("-");
    const auto names = ValidNames(command, is_flag);
    const std::vector<std::string_view> views(names.begin(), names.end());
    message = fmt::format("unknown {} '{}'", is_flag ? "flag" : "argument", extras.front());
    if (!views.empty())
      message += fmt::format("; did you mean '{}'?", augur::NearestName(extras.front(), views));
  }
  fmt::print(stderr, "augur: {} (see {} --help)\n", message,
             &command == &app ? "augur" : "augur " + command.get_name());
  return kUserError;
}

// What main() does; its result is the exit code.
int Run(int argc, char** argv) {
  CLI::App app("Augur: reinforcement learning of language models with predictive divergence masks", "augur");
  app.set_version_flag("--version", AUGUR_VERSION);
  app.require_subcommand(0, 1);
  augur::AddCommands(app);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return ReportParseError(app, error);
  } catch (const augur::ExitCode& exit) {
    return exit.code;
  } catch (const augur::Error& error) {
    fmt::print(stderr, "augur: {}\n", error.what());
    return kUserError;
  } catch (const std::system_error& error) {  // of fmt::print
    fmt::print(stderr, "augur: {}; check where the output goes\n", error.what());
    return kUserError;
  } catch (const std::exception& error) {
    fmt::print(stderr, "augur: internal error: {}\n", error.what());
    return kInternalError;
  }
}

// What was printed may still fail to arrive.
int FlushOutput(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  fmt::print(stderr, "augur: standard output: cannot write: {}; check where it goes\n", std::strerror(errno));
  return code == 0 ? kUserError : code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit fails, and is reported, like any other
  const int code = FlushOutput(Run(argc, argv));
  std::fflush(nullptr);
  // Not return: torch's libraries do not all survive the destructors of their statics at the end of a
  // program.
  std::_Exit(code);
}
