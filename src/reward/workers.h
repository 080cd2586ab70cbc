// Reward functions in Python: worker processes that score responses while generation goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/child_process.h"
#include "base/json.h"

namespace augur {

struct RewardOutcome {
  bool failed =
      false;         // the function raised, hung, or took its process with it; the score means nothing then
  double score = 0;  // NaN where the function returned None, as TRL's may
  std::string error = {};                      // why it failed, in a line
  std::map<std::string, double> figures = {};  // the other numbers of a result that was a dict
  std::optional<std::string> answer = {};      // its "pred", what the response votes for
  std::string told = {};                       // what was written to stderr about it, or before it
};

struct RewardWorkerOptions {
  std::string name;                   // of the function, for messages: "rewards.py:score"
  std::string key = "reward.python";  // where it was set
  int64_t workers = 1;
  double timeout_s = 30;  // for one response
  // Starts a process that speaks python/augur/_reward_worker.py's protocol. Called by one thread at a time.
  std::function<ChildProcess()> start;
  // Ends one; returns how it ended, as ExitText says it.
  std::function<std::string(const ChildProcess&)> end;
};

class RewardWorkers {
 public:
  // Starts the processes and waits until all have loaded the function. Throws Error, after showing the
  // traceback, where it cannot be loaded, and Stopped as CheckStop says.
  explicit RewardWorkers(RewardWorkerOptions options);
  ~RewardWorkers();
  RewardWorkers(const RewardWorkers&) = delete;
  RewardWorkers& operator=(const RewardWorkers&) = delete;

  // Whether the function takes the responses to a prompt together, as TRL's do.
  bool takes_groups() const;

  // Queues responses that are scored in one call, each {"data_source", "prompt", "text", "tokens",
  // "ground_truth", "extra_info", "columns", "trainer_state"}; more than one only where takes_groups(). Where
  // that call fails, they are scored one by one, so that one that cannot be scored costs the others nothing;
  // where each can be scored alone, all have failed, unless the call was only slow.
  // Results do not depend on the order in which responses are queued, as far as the function does not. May be
  // called by any thread. The first failure is shown whole on standard error.
  std::vector<std::future<RewardOutcome>> Score(const std::vector<Json>& responses);

  // Processes started in place of others that died or were ended over a response.
  int64_t restarts() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace augur
