#include <omp.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/decode/attention_kernels.h"
#include "kernels/decode/paged_attention.h"
#include "kernels/decode/paged_attention_bfmmla.h"
#include "kernels/simd/parallel_work.h"

namespace augur {
namespace {

template <typename T>
const AttentionKernels<T>& Kernels() {
  if constexpr (std::is_same_v<T, float>) {
    return AUGUR_LANES_CHOICE(kFloatAttention);
  } else {
    return AUGUR_LANES_CHOICE(kBf16Attention);
  }
}

}  // namespace

template <typename T>
void WriteKvCpu(const PagedShape& shape, const KvPages<T>& kv, const PagedToken& token, const float* keys,
                const float* values) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (AttendsWithBfmmla(shape)) return WriteKvBfmmla(shape, kv, token, keys, values);
  }
  Kernels<T>().write(shape, kv, token, keys, values);
}

template <typename T>
void PagedAttentionCpu(const PagedShape& shape, const KvPages<T>& kv, const PagedToken* tokens, int64_t count,
                       const float* q, int64_t q_stride, float* out) {
  const AttentionKernels<T>& kernels = Kernels<T>();
  const int64_t tasks = count * shape.kv_heads;
  const int64_t row = static_cast<int64_t>(shape.heads) * shape.head_dim, part = row / shape.kv_heads;
  int64_t work = 0, last = 0;
  for (int64_t t = 0; t < count; ++t) {
    work += (tokens[t].position + 1) * row;
    last = std::max<int64_t>(last, tokens[t].position);
  }
  // Heads of one token follow each other on one thread, unless there are few for each.
  const int64_t together = std::clamp<int64_t>(tasks / (4 * omp_get_max_threads()), 1, 4);
#pragma omp parallel if (WorthThreads(work))
  {
    std::vector<float> scratch(AttentionScratchFloats(shape, last));
    Bf16AttentionScratch narrow;
#pragma omp for schedule(dynamic, together)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t t = task / shape.kv_heads;
      const int kv_head = static_cast<int>(task % shape.kv_heads);
      const float* from = q + t * q_stride + kv_head * part;
      float* to = out + t * row + kv_head * part;
      if constexpr (std::is_same_v<T, BFloat16>) {
        if (AttendsWithBfmmla(shape)) {
          const int64_t after = std::min(task + 1, tasks - 1), u = after / shape.kv_heads;
          const PagedPlace next{tokens[u], static_cast<int>(after % shape.kv_heads)};
          // The tokens of one prompt follow each other and share what is in the cache.
          const bool fetch = u == 0 || tokens[u].pages != tokens[u - 1].pages;
          AttendBfmmla(shape, kv, {tokens[t], kv_head}, fetch ? &next : nullptr, from, to, &narrow);
          continue;
        }
      }
      kernels.attend(shape, kv, tokens[t], kv_head, from, to, scratch.data());
    }
  }
}

#define AUGUR_INSTANTIATE(T)                                                                           \
  template void WriteKvCpu<T>(const PagedShape&, const KvPages<T>&, const PagedToken&, const float*,   \
                              const float*);                                                           \
  template void PagedAttentionCpu<T>(const PagedShape&, const KvPages<T>&, const PagedToken*, int64_t, \
                                     const float*, int64_t, float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
