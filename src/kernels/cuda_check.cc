#include "base/error.h"

namespace augur {

[[noreturn]] void ThrowCudaError(const char* what, const char* message) {
  throw Error(what, message, "run `augur doctor` to see what the machine offers");
}

}  // namespace augur
