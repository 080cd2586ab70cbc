// The subcommands of `augur`; each is declared here and lives in a file of its own.
#pragma once

#include <CLI/CLI.hpp>

namespace augur {

// Each adds one subcommand to the program: its flags, its help and the callback that runs it. Callbacks throw
// augur::Error for anything the user can mend, or ExitCode once they have said it themselves.
void AddGenerateCommand(CLI::App& app);
void AddEvalCommand(CLI::App& app);
void AddScoreCommand(CLI::App& app);
void AddTokenizeCommand(CLI::App& app);
void AddVerifyCommand(CLI::App& app);
void AddPromptsCommand(CLI::App& app);
void AddTrainCommand(CLI::App& app);
void AddSftCommand(CLI::App& app);
void AddExportCommand(CLI::App& app);
void AddConvertCommand(CLI::App& app);
void AddConfigCommand(CLI::App& app);
void AddAnalyzeCommand(CLI::App& app);
void AddCompareCommand(CLI::App& app);
void AddFrontierCommand(CLI::App& app);
void AddReportCommand(CLI::App& app);
void AddWatchCommand(CLI::App& app);
void AddBenchCommand(CLI::App& app);
void AddDoctorCommand(CLI::App& app);

// All of them, in the order `augur --help` lists them.
inline void AddCommands(CLI::App& app) {
  AddGenerateCommand(app);
  AddEvalCommand(app);
  AddScoreCommand(app);
  AddTokenizeCommand(app);
  AddVerifyCommand(app);
  AddPromptsCommand(app);
  AddTrainCommand(app);
  AddSftCommand(app);
  AddExportCommand(app);
  AddConvertCommand(app);
  AddConfigCommand(app);
  AddAnalyzeCommand(app);
  AddCompareCommand(app);
  AddFrontierCommand(app);
  AddReportCommand(app);
  AddWatchCommand(app);
  AddBenchCommand(app);
  AddDoctorCommand(app);
}

}  // namespace augur
