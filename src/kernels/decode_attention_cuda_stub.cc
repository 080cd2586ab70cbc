#include "kernels/decode_attention.h"
#include "kernels/no_cuda.h"

namespace augur {

int DecodeAttentionSplits(int64_t, int, int64_t) { return 1; }

int64_t DecodeAttentionWorkspaceBytes(int64_t, int, int, int) { return 0; }

template <typename T>
void DecodeAttentionCuda(const DecodeAttention<T>&, void*) {
  ThrowNoCuda("attention over pages");
}

template void DecodeAttentionCuda(const DecodeAttention<float>&, void*);
template void DecodeAttentionCuda(const DecodeAttention<BFloat16>&, void*);

}  // namespace augur
