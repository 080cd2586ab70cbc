// An orderly end on SIGINT or SIGTERM.
#pragma once

namespace augur {

// While it lives, the first SIGINT or SIGTERM only sets a flag; a second one ends the process at once. What
// handled them before (Python, where it is the host) does so again afterwards.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal's name ("SIGINT"), or null while none has come.
  static const char* Received();

 private:
  using Handler = void (*)(int);
  Handler interrupt_, terminate_;
};

}  // namespace augur
