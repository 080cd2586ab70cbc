// Prompt sets that are computed instead of read: named like a file, "task:sort:numbers=10:count=4096:seed=1".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/prompt.h"

namespace augur {

// Whether a name in the place of a file's asks for a computed prompt set.
bool IsTask(std::string_view name);

// The prompts of a task; a pure function of the name.
//
//   task:sort   "17 3 200 =" with the answer "3 17 200": different whole numbers to be put in rising order.
//               numbers (10) of them from 0 to largest (255); count (4096) prompts; seed (0).
//   task:arithmetic   "What is 12 - 7 + 30? Answer with the number alone." with the answer "35":
//               terms (2) whole numbers from 0 to largest (99), added and subtracted; count (4096); seed (0).
//
// index is left to the caller; file is the name and line counts from 1. Throws Error for an unknown task, an
// unknown field or a value out of range.
std::vector<Prompt> MakeTask(const std::string& name);

}  // namespace augur
