#include <string_view>

#include "base/error.h"

namespace augur {

[[noreturn]] void ThrowCudaError(const char* what, const char* message) {
  if (std::string_view(message) == "out of memory") {
    throw MemoryError(what, "the GPU's memory is full", "use a smaller batch, or a GPU with more");
  }
  throw Error(what, message, "run `augur doctor` to see what the machine offers");
}

}  // namespace augur
