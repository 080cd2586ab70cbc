#include "base/process_group.h"

#include <string_view>
#include <utility>

#include "base/error.h"

namespace augur {
namespace {

ProcessGroup this_group;
GroupMaker group_maker = nullptr;

}  // namespace

const ProcessGroup& ThisProcessGroup() { return this_group; }
void SetProcessGroup(ProcessGroup group) { this_group = std::move(group); }

void SetGroupMaker(GroupMaker maker) { group_maker = maker; }

DividedGroup DivideProcessGroup(int count) {
  char names[512] = {};
  if (group_maker != nullptr) group_maker(count, names, sizeof names);
  const std::string_view text(names);
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) {
    throw Error("process group", "could not be divided", "start the program with python -m augur");
  }
  const int width = this_group.size / count;
  DividedGroup made{this_group, this_group};
  made.within.name = text.substr(0, end);
  made.within.rank = this_group.rank % width;
  made.within.size = width;
  made.across.name = text.substr(end + 1, text.size() - end - 2);
  made.across.rank = this_group.rank / width;
  made.across.size = count;
  return made;
}

}  // namespace augur
