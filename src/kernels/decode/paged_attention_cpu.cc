#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/decode/attention_kernels.h"
#include "kernels/decode/paged_attention.h"
#include "kernels/decode/paged_attention_bfmmla.h"
#include "kernels/simd/parallel_work.h"
#include "kernels/thread_team.h"

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
  const int64_t floats = AttentionScratchFloats(shape, last);
  ParallelFor(tasks, WorthThreads(work), [&](int64_t task) {
    thread_local std::vector<float> scratch;
    thread_local Bf16AttentionScratch narrow;
    if (static_cast<int64_t>(scratch.size()) < floats) scratch.resize(floats);
    const auto place = [&](int64_t of) {
      return PagedPlace{tokens[of / shape.kv_heads], static_cast<int>(of % shape.kv_heads)};
    };
    const int64_t after = std::min(task + 1, tasks - 1), t = task / shape.kv_heads,
                  u = after / shape.kv_heads;
    const PagedPlace here = place(task), next = place(after);
    const float* from = q + t * q_stride + here.kv_head * part;
    float* to = out + t * row + here.kv_head * part;
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (AttendsWithBfmmla(shape)) {
        // The tokens of one prompt follow each other and share what is in the cache.
        const bool fetch = u == 0 || tokens[u].pages != tokens[u - 1].pages;
        AttendBfmmla(shape, kv, here, fetch ? &next : nullptr, from, to, &narrow);
        return;
      }
    }
    kernels.attend(shape, kv, here, next, from, to, scratch.data());
  });
}

#define AUGUR_INSTANTIATE(T)                                                                           \
  template void WriteKvCpu<T>(const PagedShape&, const KvPages<T>&, const PagedToken&, const float*,   \
                              const float*);                                                           \
  template void PagedAttentionCpu<T>(const PagedShape&, const KvPages<T>&, const PagedToken*, int64_t, \
                                     const float*, int64_t, float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
