#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

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

}  // namespace augur
