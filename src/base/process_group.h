// The processes that torchrun or srun started together, of which this is one.
#pragma once

#include <string>

namespace augur {

struct ProcessGroup {
  std::string name;  // of torch's process group, for ops/collectives.h; empty where this process is alone
  int rank = 0, size = 1;
};

// As Python registered it; otherwise this process alone.
const ProcessGroup& ThisProcessGroup();
void SetProcessGroup(ProcessGroup group);

}  // namespace augur
