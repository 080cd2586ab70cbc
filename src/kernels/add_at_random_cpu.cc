#include "kernels/adamw_math.h"
#include "kernels/add_at_random.h"

namespace augur {
namespace {

template <typename T>
void AddAtRandom(const RandomSum& s) {
  auto* sum = static_cast<BFloat16*>(s.sum);
  const T* added = static_cast<const T*>(s.added);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < s.size; ++i) {
    const float value = static_cast<float>(sum[i]) + static_cast<float>(added[i]);
    const Philox random = Philox::At(s.key, static_cast<uint64_t>(i), s.step);
    sum[i].bits = RoundFiniteAtRandom(std::bit_cast<uint32_t>(value), random.word[0]);
  }
}

}  // namespace

void AddAtRandomCpu(const RandomSum& sum) {
  sum.added_type == ElementType::kBFloat16 ? AddAtRandom<BFloat16>(sum) : AddAtRandom<float>(sum);
}

}  // namespace augur
