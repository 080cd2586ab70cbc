// What cuda_stub.cc throws in a build without nvcc.
#pragma once

#include "base/error.h"

namespace augur {

[[noreturn]] inline void ThrowNoCuda(std::string_view what) {
  throw Error(what, "this build has no CUDA kernels",
              "install nvcc 13 and configure again, or move the tensors to the CPU");
}

}  // namespace augur
