// The benchmarks of `augur bench`; each lives in a file of its own.
#pragma once

#include <CLI/CLI.hpp>

namespace augur {

void AddBenchDecide(CLI::App& bench);
void AddBenchHead(CLI::App& bench);
void AddBenchRollout(CLI::App& bench);
void AddBenchStep(CLI::App& bench);
void AddBenchTrain(CLI::App& bench);

}  // namespace augur
