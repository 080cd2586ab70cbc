// A process that keeps a core busy, as other people's do.
#pragma once

#include <sys/types.h>

namespace augur {

class BusyProcess {
 public:
  BusyProcess();
  ~BusyProcess();
  BusyProcess(const BusyProcess&) = delete;
  BusyProcess& operator=(const BusyProcess&) = delete;

 private:
  pid_t pid_;
};

}  // namespace augur
