// Tiles of bfloat16 matrices as Hopper's tensor cores take them for few tokens: their sizes, and the maps by
// which copies find them. For .cu files only.
#pragma once

#include "kernels/cuda_check.h"
#include "kernels/cuda_rows.h"
#include "kernels/decode/bulk_copy_cuda.h"
#include "kernels/gpu_generation.h"

namespace augur {

inline constexpr int kTileTokens = 64;             // the tensor cores' rows
inline constexpr int kStepBytes = kSwizzledBytes;  // of a row in a tile
inline constexpr int kStep = kStepBytes / static_cast<int>(sizeof(BFloat16));
inline constexpr int kTokenBytes = kTileTokens * kStepBytes;  // of a tile

// Whether y [tokens, out] = f(x [tokens, in], weight [.., in]) can be computed with one tile of tokens.
inline bool TakesTiles(int64_t tokens, int64_t in, int64_t out, const BFloat16* x, const BFloat16* weight,
                       const BFloat16* y) {
  const auto addresses =
      reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(weight) | reinterpret_cast<uintptr_t>(y);
  return tokens > 0 && tokens <= kTileTokens && in > 0 && in % 8 == 0 && out > 0 && out % 8 == 0 &&
         addresses % 16 == 0 && HasHopperKernels();
}

// The driver's function, found without linking to the driver. `what` names the kernel in errors, as below.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
inline EncodeTiled FindEncodeTiled(const char* what) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CheckCuda(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
      what);
  if (found == nullptr) ThrowCudaError(what, "the driver has no tiled copies");
  return reinterpret_cast<EncodeTiled>(found);
}

// How tiles of `tile_rows` rows and kStepBytes of their width are copied from a matrix [rows, width].
inline CUtensorMap MakeTileMap(const BFloat16* data, int64_t rows, int64_t width, int tile_rows,
                               const char* what) {
  static const EncodeTiled encode = FindEncodeTiled(what);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(width) * sizeof(BFloat16)};
  const cuuint32_t box[] = {kStep, static_cast<cuuint32_t>(tile_rows)}, every[] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<BFloat16*>(data), sizes, strides, box,
             every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) ThrowCudaError(what, "the driver refuses the sizes of a tile");
  return map;
}

inline int Multiprocessors(const char* what) {
  int device = 0, count = 0;
  CheckCuda(cudaGetDevice(&device), what);
  CheckCuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), what);
  return count;
}

}  // namespace augur
