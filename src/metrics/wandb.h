// Metrics sent to Weights & Biases, by its own package in a process of its own (python/augur/_wandb.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/child_process.h"
#include "base/json.h"
#include "metrics/step_metrics.h"

namespace augur {

class WandbWriter {
 public:
  // Starts a run in `project`, or goes on with the one that RUN/wandb.json names. Throws Error at log.wandb
  // where the package is missing or refuses.
  WandbWriter(const std::string& project, const std::filesystem::path& run, const std::string& config_yaml);
  // Waits, a minute at most, until all is sent.
  ~WandbWriter();
  WandbWriter(const WandbWriter&) = delete;
  WandbWriter& operator=(const WandbWriter&) = delete;

  void Write(int64_t step, const Metrics& metrics);
  void WriteReport(const std::filesystem::path& page);

 private:
  void Send(const Json& message);

  ChildProcess child_;
};

}  // namespace augur
