// What the shared library exports: the program, and what Python needs to be its host. No C++ type crosses
// this border.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

extern "C" {

// Where the program has a host, what it tells it. Each may be null.
struct AugurHooks {
  // A message that would otherwise go to standard error behind "augur: ".
  void (*error)(const char* message);
  // After each step of training, of `steps`, and at 0 after an evaluation before the first: its metrics as a
  // JSON object.
  void (*step)(int64_t step, int64_t steps, const char* metrics);
  // What the command made, as a JSON object: {"dir", "steps", "stopped_by"} of train, the figures of eval.
  void (*result)(const char* result);
};

// The program: parses the command line, runs one subcommand, and turns errors into one line. Returns the exit
// code. May be called again and again, by one thread at a time. `hooks` may be null.
int augur_main(int argc, const char* const* argv, const AugurHooks* hooks);

// "0.2.0"
const char* augur_version();
// "2.11.0": the torch it was built for. Python finds it in the file, behind "augur-built-for-torch ", before
// it loads the library.
const char* augur_torch_version();

// Tells which Python runs what is written in it (reward functions, Parquet files), and where the package
// lies.
void augur_set_python(const char* interpreter, const char* package);

// The socket of python/augur/_reward_server.py, where the function of reward.python was passed to
// augur.train; -1: none.
void augur_set_reward_server(int fd);

// Ends the run in progress as Ctrl-C does, saved; for a host whose `step` has failed. Does nothing where a
// signal has come before.
void augur_request_stop();

// Tells which of the processes that were started together this one is, and what torch calls their group; the
// fields of ProcessGroup (base/process_group.h).
void augur_set_process_group(const char* name, int rank, int size, int gpu, int local_size);
// Who makes further groups; see DivideProcessGroup there.
void augur_set_group_maker(void (*maker)(int count, char* names, int size));
}

namespace augur {

// Those of the call of augur_main in progress.
const AugurHooks& Hooks();
void TellResult(const nlohmann::ordered_json& result);

}  // namespace augur
