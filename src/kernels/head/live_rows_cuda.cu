#include "kernels/cuda_check.h"
#include "kernels/head/live_rows.h"
#include "kernels/head/live_rows_math.h"

namespace augur {
namespace {

constexpr int kThreads = 1024;

// The number of threads before this one whose flag is set, and the block's total.
struct Rank {
  int before, total;
};

__device__ Rank RankOf(bool flag, int warp_counts[kThreads / 32]) {
  const unsigned ballot = __ballot_sync(0xffffffffu, flag);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // the last call's counts have been read
  if (lane == 0) warp_counts[warp] = __popc(ballot);
  __syncthreads();
  Rank rank{__popc(ballot & ((1u << lane) - 1)), 0};
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) rank.before += warp_counts[w];
    rank.total += warp_counts[w];
  }
  return rank;
}

// One block: a chunk has a few thousand rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    LiveRowsKernel(LiveRowsInput<T> in, int32_t* source, int32_t* count) {
  __shared__ int warp_counts[kThreads / 32];
  int live = 0;
  for (int64_t begin = 0; begin < in.rows; begin += kThreads) {
    const int64_t r = begin + threadIdx.x;
    live += RankOf(r < in.rows && IsLive(in, r), warp_counts).total;
  }
  // Dead rows below `live` are listed in the scratch behind it; there are no more of them than live rows
  // above.
  int holes = 0;
  for (int64_t begin = 0; begin < live; begin += kThreads) {
    const int64_t r = begin + threadIdx.x;
    const bool hole = r < live && !IsLive(in, r);
    const Rank rank = RankOf(hole, warp_counts);
    if (r < live) source[r] = static_cast<int32_t>(r);
    if (hole) source[live + holes + rank.before] = static_cast<int32_t>(r);
    holes += rank.total;
  }
  __syncthreads();
  int moved = 0;
  for (int64_t begin = live; begin < in.rows; begin += kThreads) {
    const int64_t r = begin + threadIdx.x;
    const bool moves = r < in.rows && IsLive(in, r);
    const Rank rank = RankOf(moves, warp_counts);
    if (moves) source[source[live + moved + rank.before]] = static_cast<int32_t>(r);
    moved += rank.total;
  }
  if (threadIdx.x == 0) *count = live;
}

}  // namespace

template <typename T>
void LiveRowsCuda(const LiveRowsInput<T>& in, int32_t* source, int32_t* count, void* stream) {
  LiveRowsKernel<T><<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, source, count);
  CheckCuda(cudaGetLastError(), "live rows on the GPU");
}

template void LiveRowsCuda(const LiveRowsInput<float>&, int32_t*, int32_t*, void*);
template void LiveRowsCuda(const LiveRowsInput<double>&, int32_t*, int32_t*, void*);

}  // namespace augur
