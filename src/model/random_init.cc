#include "model/random_init.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>

#include "base/random.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

constexpr uint64_t kStream = 0x696E697400000000;  // "init": apart from other uses of the same seed

// Box and Muller's transform of two uniform numbers into two normal ones.
void FillNormal(float* to, int64_t count, double deviation, uint64_t seed, uint64_t tensor) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; i += 4) {
    const Philox random = Philox::At(seed, static_cast<uint64_t>(i), kStream + tensor);
    for (int64_t pair = 0; pair < 4 && i + pair < count; pair += 2) {
      const double radius = deviation * std::sqrt(-2 * std::log(random.Uniform(static_cast<int>(pair))));
      const double angle = 2 * std::numbers::pi * random.Uniform(static_cast<int>(pair) + 1);
      to[i + pair] = static_cast<float>(radius * std::cos(angle));
      if (i + pair + 1 < count) to[i + pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }
}

}  // namespace

Model RandomModel(const ModelConfig& config, at::ScalarType dtype, at::Device device, uint64_t seed) {
  const double deviation = config.source.value("initializer_range", 0.02);
  Model model = AllocateModel(config, dtype, device);
  uint64_t index = 0;
  for (const StoredTensor& stored : StoredTensors(model)) {
    at::Tensor part = stored.Part(stored.parameter);
    if (stored.bias) {
      part.zero_();
    } else if (stored.role == Role::kNorm) {
      part.fill_(1);
    } else {
      const at::Tensor values = at::empty(part.sizes(), at::kFloat);
      FillNormal(Data<float>(values), values.numel(), deviation, seed, index);
      part.copy_(values);
    }
    ++index;
  }
  return model;
}

}  // namespace augur
