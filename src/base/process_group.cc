#include "base/process_group.h"

#include <utility>

namespace augur {
namespace {

ProcessGroup this_group;

}  // namespace

const ProcessGroup& ThisProcessGroup() { return this_group; }
void SetProcessGroup(ProcessGroup group) { this_group = std::move(group); }

}  // namespace augur
