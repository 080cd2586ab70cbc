#include "kernels/head/live_rows.h"
#include "kernels/head/live_rows_math.h"

namespace augur {

template <typename T>
void LiveRowsCpu(const LiveRowsInput<T>& in, int32_t* source, int32_t* count) {
  int32_t live = 0;
  for (int64_t r = 0; r < in.rows; ++r) live += IsLive(in, r);
  int64_t mover = live;
  for (int32_t r = 0; r < live; ++r) {
    source[r] = r;
    if (IsLive(in, r)) continue;
    while (!IsLive(in, mover)) ++mover;
    source[r] = static_cast<int32_t>(mover++);
  }
  *count = live;
}

template void LiveRowsCpu(const LiveRowsInput<float>&, int32_t*, int32_t*);
template void LiveRowsCpu(const LiveRowsInput<double>&, int32_t*, int32_t*);

}  // namespace augur
