// Metrics sent to Weights & Biases, by its own package in a process of its own (python/augur/_wandb.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/child_process.h"
#include "base/json.h"
#include "metrics/step_metrics.h"

namespace augur {

// Keeps the id of wandb's run in a run directory.
inline constexpr const char* kWandbFile = "wandb.json";

class WandbWriter {
 public:
  // Throws Error at log.wandb where the package is missing.
  WandbWriter(const std::string& project, const std::filesystem::path& run);
  // Waits until all is sent and wandb has finished: a minute at most, ten seconds after a signal.
  ~WandbWriter();
  WandbWriter(const WandbWriter&) = delete;
  WandbWriter& operator=(const WandbWriter&) = delete;

  // Starts a run of wandb's: another one where this begins `anew`, otherwise the one that RUN/wandb.json
  // names, if it does. Throws Error where wandb refuses, Stopped on a signal. Comes before what is written.
  void Begin(const std::string& config_yaml, bool anew);
  // Return at once. What a stalled W&B does not take waits in memory, up to 1 MiB; beyond that messages are
  // dropped and counted.
  void Write(int64_t step, const Metrics& metrics);
  void WriteReport(const std::filesystem::path& page);

 private:
  void Send(const Json& message);
  void Flush();
  void Finish();
  // Throws Error where the process does not say that it is ready.
  void AwaitReady();

  ChildProcess child_;
  bool begun_ = false;
  bool gone_ = false;    // its process has ended
  std::string waiting_;  // lines, the first perhaps sent in part
  int64_t dropped_ = 0;  // messages
};

}  // namespace augur
