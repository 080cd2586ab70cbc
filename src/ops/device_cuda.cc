#include <c10/cuda/CUDAStream.h>

#include "ops/device.h"

namespace augur {

void* CurrentStream(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return nullptr;
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

}  // namespace augur
