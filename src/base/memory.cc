#include "base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace augur {
namespace {

int64_t Pages(int which) { return ::sysconf(which) * ::sysconf(_SC_PAGE_SIZE); }

}  // namespace

int64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  int64_t kib = 0;
  while (file >> word) {
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return Pages(_SC_AVPHYS_PAGES);
}

int64_t MostMemory() {
  int64_t most = Pages(_SC_PHYS_PAGES), limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) most = std::min(most, limit);
  rlimit address_space{};
  if (::getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    most = std::min(most, static_cast<int64_t>(address_space.rlim_cur));
  }
  return most;
}

}  // namespace augur
