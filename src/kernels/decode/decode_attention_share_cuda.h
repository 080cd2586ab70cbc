// One warp's part of attention over pages: keys and values from memory to registers, and the two products.
// For decode_attention_cuda.cu alone.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda_rows.h"
#include "kernels/decode/decode_attention.h"
#include "kernels/simd/exp2.h"

namespace augur {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTile = 16;    // tokens a warp takes at a time; never more than one page
constexpr int kQueries = 8;  // query heads of a block: the width of the tensor cores' product

template <typename E>
struct Input {
  int heads, group, kv_heads, head_dim;
  const E* q;
  int64_t q_stride;
  const E* keys;
  const E* values;
  const uint8_t* keys_fp8;
  const uint8_t* values_fp8;
  const float* key_scale;
  const float* value_scale;
  int page_size;
  const int32_t* page_table;
  int64_t table_stride;
  const int32_t* positions;
  const int32_t* owners;
  E* out;
  int splits;
  float* partial;     // [sequences, heads, splits, head_dim]
  float2* summaries;  // [sequences, heads, splits]: the maximum in powers of two, the sum of weights
  int32_t* arrived;   // [sequences, gridDim.y]: blocks that are done
  float scale;        // log2(e) / sqrt(head_dim)
};

// Keys and values are used once per step: they pass the first cache by.
__device__ __forceinline__ uint4 LoadOnce(const void* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

// c += a b for a [16, 16] and b [16, 8] of bfloat16, c float.
__device__ __forceinline__ void Mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same of half precision, which holds every e4m3 value.
__device__ __forceinline__ void MmaHalf(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The 8 x 8 matrix that a warp holds, two neighbours of a row per lane, transposed.
__device__ __forceinline__ uint32_t Transpose(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ uint32_t PackHalf(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Eight e4m3 values as half precision.
__device__ __forceinline__ uint4 Widen(uint32_t first, uint32_t second) {
#if __CUDA_ARCH__ >= 890
  uint4 out;
  asm("{.reg .b16 a, b, c, d;\n"
      "mov.b32 {a, b}, %4; mov.b32 {c, d}, %5;\n"
      "cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;\n"
      "cvt.rn.f16x2.e4m3x2 %2, c; cvt.rn.f16x2.e4m3x2 %3, d;}"
      : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
      : "r"(first), "r"(second));
  return out;
#else
  const auto two = [](uint32_t pair) {
    const __half2_raw wide = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
    return static_cast<uint32_t>(wide.x) | static_cast<uint32_t>(wide.y) << 16;
  };
  return {two(first & 0xffff), two(first >> 16), two(second & 0xffff), two(second >> 16)};
#endif
}

__device__ __forceinline__ uint32_t Part(const uint4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Over the eight lanes that hold the same queries.
__device__ __forceinline__ float MaxOverTokens(float x) {
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}
__device__ __forceinline__ float SumOverTokens(float x) {
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// One warp's share. S^T = K Q^T and O^T = V^T P^T, with tokens, or dimensions, as the 16 rows of a product
// and queries as its 8 columns. Keys and values go from memory to registers as the products want them: which
// dimension stands in which place of a product does not matter as long as both factors agree, so every lane
// loads 16 bytes in a row. Lane = 4 * row + pair.
template <int kDim>
struct WarpShare {
  static constexpr int kTokens = kTile, kScores = 4;
  static constexpr int kKeyLoads = kDim / 32, kValueLoads = kDim / 64;
  uint4 query[kKeyLoads];                  // of query `row`, dimensions 32 j + 8 pair ..
  uint4 key[2][kKeyLoads];                 // of tokens row and row + 8, likewise
  uint4 value[4][kValueLoads];             // of tokens 2 pair + {0, 1, 8, 9}, dimensions 64 j + 8 row ..
  float o[kValueLoads][4][4] = {};         // [j][i]: dimensions 64 j + 8 row + 2 i + {0, 1} of two queries
  float most[2] = {-INFINITY, -INFINITY};  // of queries 2 pair + {0, 1}
  float sum[2] = {};                       // over this lane's tokens

  static __device__ int Row() { return static_cast<int>(threadIdx.x % 32) / 4; }
  static __device__ int Pair() { return static_cast<int>(threadIdx.x) % 4; }

  __device__ void LoadQueries(const __nv_bfloat16* q, int count) {
#pragma unroll
    for (int j = 0; j < kKeyLoads; ++j) {
      query[j] = Row() < count ? *reinterpret_cast<const uint4*>(q + Row() * kDim + 32 * j + 8 * Pair())
                               : make_uint4(0, 0, 0, 0);
    }
  }

  // Of the tile whose first element is number `at` of the pages.
  __device__ void LoadKeys(const Input<__nv_bfloat16>& in, int64_t at) {
    const __nv_bfloat16* tile = in.keys + at;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int j = 0; j < kKeyLoads; ++j) {
        key[t][j] = LoadOnce(tile + (Row() + 8 * t) * kDim + 32 * j + 8 * Pair());
      }
    }
  }

  __device__ void LoadValues(const Input<__nv_bfloat16>& in, int64_t at) {
    const __nv_bfloat16* tile = in.values + at;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int token = 2 * Pair() + t % 2 + t / 2 * 8;
#pragma unroll
      for (int j = 0; j < kValueLoads; ++j) value[t][j] = LoadOnce(tile + token * kDim + 64 * j + 8 * Row());
    }
  }

  // Clears the values behind the sequence's end, which may be anything, even NaN.
  __device__ void ClearValues(int count) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (2 * Pair() + t % 2 + t / 2 * 8 < count) continue;
#pragma unroll
      for (int j = 0; j < kValueLoads; ++j) value[t][j] = make_uint4(0, 0, 0, 0);
    }
  }

  __device__ void Scores(float s[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = 0;
#pragma unroll
    for (int j = 0; j < kKeyLoads; ++j) {
      Mma(s, key[0][j].x, key[1][j].x, key[0][j].y, key[1][j].y, query[j].x, query[j].y);
      Mma(s, key[0][j].z, key[1][j].z, key[0][j].w, key[1][j].w, query[j].z, query[j].w);
    }
  }

  // Scores to weights, relative to the largest so far; what was summed before follows it.
  __device__ void Weigh(float s[4], float scale, int count) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = Row() + i / 2 * 8 < count ? s[i] * scale : -INFINITY;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float now = fmaxf(most[i], MaxOverTokens(fmaxf(s[i], s[i + 2])));
      const float shrink = Exp2(most[i] - now);
      most[i] = now;
      s[i] = Exp2(s[i] - now);
      s[i + 2] = Exp2(s[i + 2] - now);
      sum[i] = sum[i] * shrink + s[i] + s[i + 2];
#pragma unroll
      for (int j = 0; j < kValueLoads; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          o[j][k][i] *= shrink;
          o[j][k][i + 2] *= shrink;
        }
      }
    }
  }

  __device__ void AddValues(const float s[4]) {
    const uint32_t early = Transpose(Pack(s[0], s[1])), late = Transpose(Pack(s[2], s[3]));
#pragma unroll
    for (int j = 0; j < kValueLoads; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t v0 = Part(value[0][j], i), v1 = Part(value[1][j], i);
        const uint32_t v2 = Part(value[2][j], i), v3 = Part(value[3][j], i);
        Mma(o[j][i], __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632), __byte_perm(v2, v3, 0x5410),
            __byte_perm(v2, v3, 0x7632), early, late);
      }
    }
  }

  // Which dimension o[j][k] begins with.
  static __device__ int Dimension(int j, int k) { return 64 * j + 8 * Row() + 2 * k; }
};

// The same for keys and values in FP8, kTiles tiles at a time: with two, what does not depend on the bytes is
// done once for as many of them as in WarpShare. Scores are multiplied by their key's scale. The value's
// scale v joins the weight in its exponent, w = 2^(score + log2 v), so that weights of any size fit half
// precision; what is divided by at the end sums w / v.
template <int kDim, int kTiles>
struct ShareFp8 {
  static constexpr int kTokens = kTiles * kTile, kScores = 4 * kTiles;
  static constexpr int kKeyLoads = kDim / 64;  // of 16 bytes
  static constexpr int kValueLoads = kDim / 64;
  uint4 query[2 * kKeyLoads];        // half precision; [2 j + h]: dimensions 64 j + 16 pair + 8 h ..
  uint4 key[2 * kTiles][kKeyLoads];  // of tokens row + 8 t, dimensions 64 j + 16 pair ..
  uint32_t
      value[8][2 * kValueLoads];  // of tokens 2 pair + {0, 1, 8, 9, ..., 25}, dimensions 8 kValueLoads row ..
  float key_scale[2 * kTiles], value_scale[2 * kTiles];  // of tokens row + 8 t
  float o[kValueLoads][4][4] = {};                       // as in WarpShare, dimensions as Dimension tells
  float most[2] = {-INFINITY, -INFINITY};                // of queries 2 pair + {0, 1}
  float sum[2] = {};                                     // over this lane's tokens

  static __device__ int Row() { return static_cast<int>(threadIdx.x % 32) / 4; }
  static __device__ int Pair() { return static_cast<int>(threadIdx.x) % 4; }
  static __device__ int ValueToken(int t) { return 2 * Pair() + t % 2 + t / 2 * 8; }
  static __device__ int Dimension(int j, int k) { return 8 * kValueLoads * Row() + 8 * j + 2 * k; }

  __device__ void LoadQueries(const __nv_bfloat16* q, int count) {
#pragma unroll
    for (int j = 0; j < 2 * kKeyLoads; ++j) {
      query[j] = make_uint4(0, 0, 0, 0);
      if (Row() >= count) continue;
      float x[8];
      LoadVector<8>(q + Row() * kDim + 64 * (j / 2) + 16 * Pair() + 8 * (j % 2), x);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = fminf(fmaxf(x[i], -65504.0f), 65504.0f);
      query[j] = {PackHalf(x[0], x[1]), PackHalf(x[2], x[3]), PackHalf(x[4], x[5]), PackHalf(x[6], x[7])};
    }
  }

  // Not by __ldg, which may move ahead of the wait for the kernel that writes the new token's.
  __device__ void LoadKeys(const Input<__nv_bfloat16>& in, int64_t at) {
    const uint8_t* tile = in.keys_fp8 + at;
#pragma unroll
    for (int t = 0; t < 2 * kTiles; ++t) {
      key_scale[t] = __ldcg(in.key_scale + at / kDim + Row() + 8 * t);
#pragma unroll
      for (int j = 0; j < kKeyLoads; ++j) {
        key[t][j] = LoadOnce(tile + (Row() + 8 * t) * kDim + 64 * j + 16 * Pair());
      }
    }
  }

  __device__ void LoadValues(const Input<__nv_bfloat16>& in, int64_t at) {
    const uint8_t* tile = in.values_fp8 + at;
#pragma unroll
    for (int t = 0; t < 2 * kTiles; ++t) value_scale[t] = __ldcg(in.value_scale + at / kDim + Row() + 8 * t);
#pragma unroll
    for (int t = 0; t < 4 * kTiles; ++t) {
      const uint8_t* from = tile + ValueToken(t) * kDim + 8 * kValueLoads * Row();
      if constexpr (kValueLoads == 2) {
        const uint4 x = LoadOnce(from);
        value[t][0] = x.x, value[t][1] = x.y, value[t][2] = x.z, value[t][3] = x.w;
      } else {
        const uint2 x = __ldcg(reinterpret_cast<const uint2*>(from));
        value[t][0] = x.x, value[t][1] = x.y;
      }
    }
  }

  __device__ void ClearValues(int count) {
#pragma unroll
    for (int t = 0; t < 2 * kTiles; ++t) {
      if (Row() + 8 * t >= count) value_scale[t] = 1;
    }
#pragma unroll
    for (int t = 0; t < 4 * kTiles; ++t) {
      if (ValueToken(t) < count) continue;
#pragma unroll
      for (int j = 0; j < 2 * kValueLoads; ++j) value[t][j] = 0;
    }
  }

  // s[4 h + i]: of tile h as in WarpShare.
  __device__ void Scores(float s[kScores]) const {
#pragma unroll
    for (int h = 0; h < kTiles; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * h + i] = 0;
#pragma unroll
      for (int j = 0; j < 2 * kKeyLoads; ++j) {
        const int first = 2 * (j % 2);
        const uint4 early = Widen(Part(key[2 * h][j / 2], first), Part(key[2 * h][j / 2], first + 1));
        const uint4 late = Widen(Part(key[2 * h + 1][j / 2], first), Part(key[2 * h + 1][j / 2], first + 1));
        MmaHalf(s + 4 * h, early.x, late.x, early.y, late.y, query[j].x, query[j].y);
        MmaHalf(s + 4 * h, early.z, late.z, early.w, late.w, query[j].z, query[j].w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * h + i] *= key_scale[2 * h + i / 2];
    }
  }

  __device__ void Weigh(float s[kScores], float scale, int count) {
    float inverse[2 * kTiles];
#pragma unroll
    for (int t = 0; t < 2 * kTiles; ++t) {
      const float shift = __log2f(value_scale[t]);
      inverse[t] = Exp2(-shift);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[2 * t + i] = Row() + 8 * t < count ? s[2 * t + i] * scale + shift : -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = s[i];
#pragma unroll
      for (int t = 1; t < 2 * kTiles; ++t) largest = fmaxf(largest, s[2 * t + i]);
      const float now = fmaxf(most[i], MaxOverTokens(largest));
      const float shrink = Exp2(most[i] - now);
      most[i] = now;
      sum[i] *= shrink;
#pragma unroll
      for (int t = 0; t < 2 * kTiles; ++t) {
        s[2 * t + i] = Exp2(s[2 * t + i] - now);
        sum[i] += s[2 * t + i] * inverse[t];
      }
#pragma unroll
      for (int j = 0; j < kValueLoads; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          o[j][k][i] *= shrink;
          o[j][k][i + 2] *= shrink;
        }
      }
    }
  }

  __device__ void AddValues(const float s[kScores]) {
#pragma unroll
    for (int h = 0; h < kTiles; ++h) {
      const float* part = s + 4 * h;
      const uint32_t early = Transpose(PackHalf(part[0], part[1])),
                     late = Transpose(PackHalf(part[2], part[3]));
#pragma unroll
      for (int j = 0; j < kValueLoads; ++j) {
        uint4 v[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) v[t] = Widen(value[4 * h + t][2 * j], value[4 * h + t][2 * j + 1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t v0 = Part(v[0], i), v1 = Part(v[1], i), v2 = Part(v[2], i), v3 = Part(v[3], i);
          MmaHalf(o[j][i], __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632),
                  __byte_perm(v2, v3, 0x5410), __byte_perm(v2, v3, 0x7632), early, late);
        }
      }
    }
  }
};
template <int kDim>
using WarpShareFp8 = ShareFp8<kDim, 1>;
template <int kDim>
using WideShareFp8 = ShareFp8<kDim, 2>;

}  // namespace
}  // namespace augur
