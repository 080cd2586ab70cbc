// reward.python: which function of the user's scores responses, and the processes that run it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reward/workers.h"

namespace augur {

struct PythonReward {
  std::string function = {};     // "FILE.py:FUNCTION", or what Python passed: "function NAME"
  std::string interpreter = {};  // empty: the one Augur runs in or was set up with
  int64_t workers = 0;           // 0: one per core, 8 at most
  double timeout_s = 30;
  std::string key = "reward.python";  // where it was set
};

// Throws Error at `where` unless it is written in one of these ways.
void CheckPythonFunction(std::string_view function, std::string_view where);

// The file that defines it; nothing for what Python passed.
std::optional<std::string> FileOfFunction(std::string_view function);

// How many processes run it: `workers`, or for 0 one per core of this process, 8 at most.
int64_t CountRewardWorkers(int64_t workers);

// Throws Error where the file, the function or the interpreter is missing.
std::unique_ptr<RewardWorkers> StartRewardWorkers(const PythonReward& reward);

// The socket of a Python process that forks workers for a function passed from there; -1: there is none.
void SetRewardServer(int fd);

}  // namespace augur
