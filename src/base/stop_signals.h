// An orderly end on SIGINT and SIGTERM, on SIGHUP, and where nobody is left to read what is printed.
#pragma once

#include <csignal>
#include <exception>

namespace augur {

// While it lives, the first SIGINT, SIGTERM or SIGHUP (unless that is ignored, as under nohup) only sets a
// flag, one that was blocked until then included, and further ones within a second count as the same
// (`timeout` sends two); a later one ends the process at once. What handled them before (Python, where it is
// the host) does so again afterwards. One may live within another.
class StopSignals {
 public:
  StopSignals();
  // Puts back what handled the signals before, unblocked.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal's name ("SIGINT"), or null while none has come.
  static const char* Received() { return NameOf(Signal()); }
  // Its number, or 0.
  static int Signal();
  static const char* NameOf(int signal);

  // As the first SIGINT does, where no signal has come yet, under the name "a callback".
  static void Request();

 private:
  struct sigaction interrupt_, terminate_, hangup_;
};

// While it lives within a StopSignals, a pipe behind stdout or stderr that has lost its reader (`| head`)
// counts as such a signal, SIGPIPE, and what is printed goes nowhere from then on.
class StopOnLostReader {
 public:
  StopOnLostReader();
  ~StopOnLostReader();
  StopOnLostReader(const StopOnLostReader&) = delete;
  StopOnLostReader& operator=(const StopOnLostReader&) = delete;

 private:
  struct sigaction pipe_;
};

// Work was given up because a signal asked to stop.
class Stopped : public std::exception {
 public:
  const char* what() const noexcept override { return "stopped by a signal"; }
};

// While one lives, CheckStop throws once a signal has been received. Elsewhere it does nothing, so that a
// command may keep what it has.
class StopScope {
 public:
  StopScope();
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;
};

// Long computations call this between pieces of work of at most about a second, from any thread, but not
// inside a parallel region, which an exception cannot leave. Throws Stopped as StopScope says.
void CheckStop();

}  // namespace augur
