// Running out of memory, on the CPU or a GPU, as an error the user can do something about.
#pragma once

#include <exception>
#include <string_view>

#include "base/error.h"

namespace augur {

// Whether the exception says so, whoever threw it.
bool IsOutOfMemory(const std::exception& fault);

// The Error to show for it: which memory, how much was wanted where that is known, and the remedy.
Error OutOfMemory(std::string_view where, const std::exception& fault, std::string_view remedy);

}  // namespace augur
