#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

#include "base/process_group.h"

namespace augur {

int64_t UsableCores() {
  int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    cores = std::min<int64_t>(cores, std::max(1, CPU_COUNT(&allowed)));
  }
  // "400000 100000": processor time for four cores; "max 100000": without a limit.
  std::string quota;
  double period = 0;
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && quota != "max" && period > 0) {
    const auto limit = static_cast<int64_t>(std::ceil(std::stod(quota) / period));
    cores = std::min(cores, std::max<int64_t>(1, limit));
  }
  return cores;
}

int64_t CoresPerProcess() {
  // Of all the machine's, since each process may have been bound to its own already.
  const int64_t all = std::max(1u, std::thread::hardware_concurrency());
  return std::min(UsableCores(), std::max<int64_t>(1, all / ThisProcessGroup().local_size));
}

}  // namespace augur
