// The processes that torchrun or srun started together, of which this is one.
#pragma once

#include <string>

namespace augur {

struct ProcessGroup {
  std::string name;  // of torch's process group (ops/parallel); empty where this process is alone
  int rank = 0, size = 1;
  bool gpu = false;    // it moves tensors of a GPU itself (NCCL); otherwise they go through the host (Gloo)
  int local_size = 1;  // how many of the processes are on this machine
};

// As Python registered it; otherwise this process alone.
const ProcessGroup& ThisProcessGroup();
void SetProcessGroup(ProcessGroup group);

// Groups of neighbours, and across them those at the same place in theirs.
struct DividedGroup {
  ProcessGroup within, across;
};

// Divides the group into `count` parts, as the registered maker does it: it writes what torch calls the two
// groups of this process, each followed by a new line, to `names`. Every process calls it together.
using GroupMaker = void (*)(int count, char* names, int size);
void SetGroupMaker(GroupMaker maker);
DividedGroup DivideProcessGroup(int count);

}  // namespace augur
