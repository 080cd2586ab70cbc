#include "cli/bench/busy_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace augur {

BusyProcess::BusyProcess() : pid_(::fork()) {
  if (pid_ < 0) throw Error("--with-load", std::strerror(errno), "run it without");
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (volatile unsigned work = 0;;) work = work + 1;
}

BusyProcess::~BusyProcess() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace augur
