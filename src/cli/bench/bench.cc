// `augur bench`: each kind of benchmark adds its own subcommand and reports ratios measured in one run.
#include "cli/bench/bench.h"

#include "cli/commands.h"

namespace augur {

void AddBenchCommand(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure Augur against a reference in the same run");
  bench->require_subcommand(1);
  AddBenchDecide(*bench);
  AddBenchHead(*bench);
  AddBenchRollout(*bench);
  AddBenchStep(*bench);
  AddBenchTrain(*bench);
}

}  // namespace augur
