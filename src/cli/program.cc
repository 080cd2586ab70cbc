#include "cli/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/hub.h"
#include "base/process_group.h"
#include "base/python.h"
#include "base/stop_signals.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/silence.h"
#include "kernels/gpu_generation.h"
#include "kernels/simd/isa.h"
#include "model/load.h"
#include "ops/out_of_memory.h"
#include "ops/parallel/heartbeat.h"
#include "ops/parallel/ranks.h"
#include "reward/python_function.h"

namespace augur {
namespace {

// Commands that divide their work among the ranks.
const std::vector<std::string_view> kParallelCommands = {"train", "sft", "eval", "generate", "score"};

AugurHooks program_hooks;

ProcessGroup started_group;  // also of a command that runs on one process of it

void ReportFault(const std::string& message) {
  const ProcessGroup& group = started_group;
  const std::string full =
      Visible(group.size > 1 ? fmt::format("rank {}: {}", group.rank, message) : message);
  if (program_hooks.error != nullptr) {
    program_hooks.error(full.c_str());
  } else {
    Tell("augur: {}\n", full);
  }
}

// Faults that all ranks find alike are told by the first.
void ReportOnFirst(const std::string& message) {
  if (started_group.rank == 0) ReportFault(message);
}

const CLI::App& ChosenCommand(const CLI::App& app) {
  const CLI::App* command = &app;
  for (auto chosen = app.get_subcommands(); !chosen.empty(); chosen = command->get_subcommands()) {
    command = chosen.front();
  }
  return *command;
}

// "augur bench rollout"
std::string FullName(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? "augur" : FullName(*parent) + " " + command.get_name();
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
    const std::string nearest = NearestName(extras.front(), views);
    if (!nearest.empty()) {
      message += fmt::format("; did you mean '{}'?", nearest);
    } else if (!is_flag && !names.empty()) {
      message += fmt::format("; valid: {}", fmt::join(names, ", "));
    }
  }
  ReportOnFirst(fmt::format("{} (see {} --help)", message, FullName(command)));
  return kUserError;
}

// For commands that do not know it better themselves.
std::string_view MemoryRemedy(std::string_view command) {
  if (command == "generate" || command == "eval") {
    return "set --max-batch to fewer sequences, --memory-share lower, or --precision bf16";
  }
  if (command == "score") return "set --batch-tokens lower, or --dtype bf16";
  return "use a smaller model or batch, or a machine with more memory";
}

// One line for whatever ended the command early; returns the exit code.
int ReportFailure(const CLI::App& app, const std::exception& error) {
  if (IsOutOfMemory(error)) {
    const std::string command = ChosenCommand(app).get_name();
    ReportFault(OutOfMemory(command, error, MemoryRemedy(command)).what());
    return kUserError;
  }
  if (dynamic_cast<const Error*>(&error) != nullptr) {
    ReportFault(error.what());
    return kUserError;
  }
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&error) != nullptr) {
    ReportFault(fmt::format("{}; check the path, its permissions and the space left", error.what()));
    return kUserError;
  }
  if (dynamic_cast<const std::system_error*>(&error) != nullptr) {  // of fmt::print
    ReportFault(fmt::format("{}; check where the output goes", error.what()));
    return kUserError;
  }
  ReportFault(fmt::format("internal error: {}", error.what()));
  return kInternalError;
}

int RunCommand(int argc, const char* const* argv) {
  CLI::App app("Augur: reinforcement learning of language models with predictive divergence masks", "augur");
  app.set_version_flag("--version", AUGUR_VERSION);
  app.require_subcommand(0, 1);
  AddCommands(app);
  std::optional<Silence> silence;
  try {
    if (started_group.rank != 0) silence.emplace();
    SetIsa(IsaOfEnvironment());  // a fault of the environment is told before anything begins
    NamedGpuGeneration();
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) fmt::print("{}", app.help());
    return 0;
  } catch (const FailedElsewhere&) {
    return kUserError;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return ReportParseError(app, error);
  } catch (const ExitCode& exit) {
    return exit.code;
  } catch (const std::exception& error) {
    silence.reset();
    return ReportFailure(app, error);
  }
}

// Whether this process has nothing to do, since the command runs on one and this is another. The one is
// alone from then on.
bool IsSpareRank(int argc, const char* const* argv) {
  const ProcessGroup group = started_group = ThisProcessGroup();
  const std::string command = argc > 1 ? argv[1] : "";
  if (group.size == 1 || std::ranges::find(kParallelCommands, command) != kParallelCommands.end())
    return false;
  if (group.rank == 0) {
    Tell("augur: {} runs on one process; the other {} end here\n", command.empty() ? "this" : command,
         group.size - 1);
  }
  SetProcessGroup({});
  // Processes that the command starts would wait for the others of the group.
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS"}) {
    ::unsetenv(name);
  }
  return group.rank != 0;
}

// What was printed may still fail to arrive.
int FlushOutput(int code) {
  if (std::cout.flush().good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  ReportFault(fmt::format("standard output: cannot write: {}; check where it goes", std::strerror(errno)));
  std::cout.clear();  // a further call in this process may have another
  std::clearerr(stdout);
  return code == 0 ? kUserError : code;
}

}  // namespace

const AugurHooks& Hooks() { return program_hooks; }

void TellResult(const nlohmann::ordered_json& result) {
  if (program_hooks.result != nullptr)
    program_hooks.result(result.dump(-1, ' ', /*ensure_ascii=*/true).c_str());
}

}  // namespace augur

int augur_main(int argc, const char* const* argv, const AugurHooks* given) {
  augur::program_hooks = given == nullptr ? AugurHooks{} : *given;
  augur::ForgetHub();
  if (augur::IsSpareRank(argc, argv)) return 0;
  if (augur::ThisProcessGroup().size > 1) augur::StartHeartbeat(augur::ThisProcessGroup());
  const int code = augur::RunCommand(argc, argv);
  augur::RestoreDevice();
  return augur::FlushOutput(code);
}

const char* augur_version() { return AUGUR_VERSION; }

const char* augur_torch_version() {
  constexpr std::string_view kMark = "augur-built-for-torch ";
  static constexpr char kText[] = "augur-built-for-torch " AUGUR_TORCH_VERSION;
  return kText + kMark.size();
}

void augur_set_python(const char* interpreter, const char* package) {
  augur::SetPython({interpreter, package});
}

void augur_set_reward_server(int fd) { augur::SetRewardServer(fd); }

void augur_request_stop() { augur::StopSignals::Request(); }

void augur_set_process_group(const char* name, int rank, int size, int gpu, int local_size) {
  augur::SetProcessGroup({name, rank, size, gpu != 0, local_size});
}

void augur_set_group_maker(void (*maker)(int count, char* names, int size)) { augur::SetGroupMaker(maker); }
