#include "base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "base/process_group.h"

namespace augur {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

int64_t Pages(int which) { return ::sysconf(which) * ::sysconf(_SC_PAGE_SIZE); }

// The number behind `name` in a file of names and numbers; -1 where there is none.
int64_t NumberOf(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  for (int64_t number = 0; file >> word;) {
    if (word == name && file >> number) return number;
  }
  return -1;
}

// A control group's files, of the second version or of the first.
struct ControlGroup {
  const char *limit, *used, *statistics, *reclaimable;
};
constexpr ControlGroup kControlGroups[] = {
    {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
     "inactive_file"},
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
     "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"}};

int64_t Limit(const ControlGroup& group) {
  int64_t limit = 0;
  return std::ifstream(group.limit) >> limit && limit > 0 ? limit : kUnlimited;
}

// What the control group leaves, files that were read and can be forgotten included.
int64_t LeftByControlGroup() {
  int64_t left = kUnlimited;
  for (const ControlGroup& group : kControlGroups) {
    const int64_t limit = Limit(group);
    int64_t used = 0;
    if (limit == kUnlimited || !(std::ifstream(group.used) >> used)) continue;
    used -= std::max<int64_t>(0, NumberOf(group.statistics, group.reclaimable));
    left = std::min(left, std::max<int64_t>(0, limit - used));
  }
  return left;
}

}  // namespace

int64_t AvailableMemory() {
  const int64_t kib = NumberOf("/proc/meminfo", "MemAvailable:");
  return std::min(kib >= 0 ? kib * 1024 : Pages(_SC_AVPHYS_PAGES), LeftByControlGroup());
}

int64_t AvailableMemoryPerProcess() { return AvailableMemory() / ThisProcessGroup().local_size; }

int64_t MostMemory() {
  int64_t most = Pages(_SC_PHYS_PAGES);
  for (const ControlGroup& group : kControlGroups) most = std::min(most, Limit(group));
  rlimit address_space{};
  if (::getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    most = std::min(most, static_cast<int64_t>(address_space.rlim_cur));
  }
  return most;
}

}  // namespace augur
