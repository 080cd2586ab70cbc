#include "kernels/cuda_check.h"
#include "kernels/cuda_overlap.h"
#include "kernels/cuda_rows.h"
#include "kernels/layer/column_sums_cuda.h"
#include "kernels/layer/fp8_cuda.h"
#include "kernels/layer/rotary.h"

namespace augur {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int64_t kPartialRows = 528;

// What the kernels read, with CUDA's element type.
template <typename E>
struct Input {
  int64_t tokens;
  int heads, kv_heads, head_dim;
  const E* qkv;
  const E* q_norm;
  const E* k_norm;
  float eps;
  const int32_t* positions;
  const float* cos;
  const float* sin;
  ProductScale scale;
  const float* product;
};

template <typename T>
Input<typename CudaElement<T>::Type> MakeInput(const RotaryInput<T>& in) {
  return {in.tokens,           in.heads, in.kv_heads,  in.head_dim, OnDevice(in.qkv), OnDevice(in.q_norm),
          OnDevice(in.k_norm), in.eps,   in.positions, in.cos,      in.sin,           in.scale,
          in.product};
}

// One warp's head: each lane holds kPer neighbours of the first half and their partners of the second, in
// kChunks places 32 * kPer apart.
template <int kPer, int kChunks>
struct Head {
  static constexpr int kSize = kPer * kChunks;
  float low[kSize], high[kSize];

  // The index within the half of element j; the caller checks it against the half.
  static __device__ int Index(int j) {
    return ((j / kPer) * 32 + static_cast<int>(threadIdx.x % 32)) * kPer + j % kPer;
  }

  template <typename E>
  __device__ void Load(const E* from, int half) {
#pragma unroll
    for (int j = 0; j < kSize; j += kPer) {
      const int i = Index(j);
      if constexpr (kPer == 2 && sizeof(E) == 2) {
        const float2 a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from + i));
        const float2 b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from + half + i));
        low[j] = a.x, low[j + 1] = a.y, high[j] = b.x, high[j + 1] = b.y;
      } else if constexpr (kPer == 2) {
        const float2 a = *reinterpret_cast<const float2*>(from + i);
        const float2 b = *reinterpret_cast<const float2*>(from + half + i);
        low[j] = a.x, low[j + 1] = a.y, high[j] = b.x, high[j + 1] = b.y;
      } else {
        for (int k = 0; k < kPer; ++k) {
          low[j + k] = i + k < half ? static_cast<float>(from[i + k]) : 0.0f;
          high[j + k] = i + k < half ? static_cast<float>(from[half + i + k]) : 0.0f;
        }
      }
    }
  }

  template <typename E>
  __device__ void Store(E* to, int half) const {
#pragma unroll
    for (int j = 0; j < kSize; j += kPer) {
      const int i = Index(j);
      if constexpr (kPer == 2 && sizeof(E) == 2) {
        *reinterpret_cast<__nv_bfloat162*>(to + i) = __floats2bfloat162_rn(low[j], low[j + 1]);
        *reinterpret_cast<__nv_bfloat162*>(to + half + i) = __floats2bfloat162_rn(high[j], high[j + 1]);
      } else {
        for (int k = 0; k < kPer; ++k) {
          if (i + k >= half) continue;
          to[i + k] = static_cast<E>(low[j + k]);
          to[half + i + k] = static_cast<E>(high[j + k]);
        }
      }
    }
  }

  // The first element's column is column[0].
  __device__ void Rescale(float row, const float* column, int half) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const int i = Index(j);
      if (i >= half) continue;
      low[j] *= row * column[i];
      high[j] *= row * column[half + i];
    }
  }

  // As e4m3, divided by a power of two; returns that.
  __device__ float StoreFp8(uint8_t* to, int half) const {
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kSize; ++j) largest = fmaxf(largest, fmaxf(fabsf(low[j]), fabsf(high[j])));
    const float scale = E4m3PowerOfTwoScale(WarpMax(largest)), inverse = 1.0f / scale;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const int i = Index(j);
      if (i >= half) continue;
      to[i] = __nv_cvt_float_to_fp8(low[j] * inverse, __NV_SATFINITE, __NV_E4M3);
      to[half + i] = __nv_cvt_float_to_fp8(high[j] * inverse, __NV_SATFINITE, __NV_E4M3);
    }
    return scale;
  }

  // Rounded to the type that they would be stored as.
  template <typename E>
  __device__ void RoundTo() {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      low[j] = static_cast<float>(static_cast<E>(low[j]));
      high[j] = static_cast<float>(static_cast<E>(high[j]));
    }
  }

  __device__ float InverseRms(int head_dim, float eps) const {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kSize; ++j) squares += low[j] * low[j] + high[j] * high[j];
    return rsqrtf(WarpSum(squares) / static_cast<float>(head_dim) + eps);
  }

  __device__ void Rotate(const float* cos, const float* sin, int half, float direction) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const int i = Index(j);
      if (i >= half) continue;
      const float a = low[j], b = high[j], c = cos[i], s = direction * sin[i];
      low[j] = a * c - b * s;
      high[j] = b * c + a * s;
    }
  }
};

template <typename E>
struct Pages {
  E* keys;
  E* values;
  int page_size;
  const int32_t* page_table;
  int64_t table_stride;
  const int32_t* sequence;
  uint8_t* keys_fp8;
  uint8_t* values_fp8;
  float* key_scale;
  float* value_scale;

  // Where key/value head `head` of the token stands, in elements; negative: nowhere.
  __device__ int64_t Offset(int64_t token, int position, int head, int kv_heads, int head_dim) const {
    const int64_t owner = sequence ? sequence[token] : token;
    const int64_t page = page_table[owner * table_stride + position / page_size];
    if (page < 0) return -1;
    return ((page * kv_heads + head) * page_size + position % page_size) * head_dim;
  }
};

template <typename E, int kPer, int kChunks>
__global__ void __launch_bounds__(kThreads) ForwardKernel(Input<E> in, E* rotated, Pages<E> pages) {
  Overlap();
  const int turned = in.heads + in.kv_heads;
  const bool stores = pages.page_table != nullptr;
  const int all = stores ? turned + in.kv_heads : turned;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= in.tokens * all) return;
  const int64_t token = item / all;
  const int h = static_cast<int>(item % all), half = in.head_dim / 2;
  const int position = in.positions[token];
  if (position < 0) return;  // a row without a token
  Head<kPer, kChunks> head;
  const int64_t place = (token * (turned + in.kv_heads) + h) * in.head_dim;
  if (in.product != nullptr) {
    head.Load(in.product + place, half);
    head.Rescale(in.scale.row[token], in.scale.column + h * in.head_dim, half);
    head.template RoundTo<E>();
  } else {
    head.Load(in.qkv + place, half);
  }
  if (h < turned) {
    if (in.q_norm != nullptr) {
      Head<kPer, kChunks> weight;
      weight.Load(h < in.heads ? in.q_norm : in.k_norm, half);
      const float inverse = head.InverseRms(in.head_dim, in.eps);
#pragma unroll
      for (int j = 0; j < head.kSize; ++j) {
        head.low[j] *= inverse * weight.low[j];
        head.high[j] *= inverse * weight.high[j];
      }
    }
    const int64_t angle = static_cast<int64_t>(position) * half;
    head.Rotate(in.cos + angle, in.sin + angle, half, 1.0f);
    head.Store(rotated + (token * turned + h) * in.head_dim, half);
  }
  if (!stores || h < in.heads) return;
  const bool value = h >= turned;
  const int kv_head = value ? h - turned : h - in.heads;
  const int64_t offset = pages.Offset(token, position, kv_head, in.kv_heads, in.head_dim);
  if (offset < 0) return;
  if (pages.keys_fp8 == nullptr) {
    head.Store((value ? pages.values : pages.keys) + offset, half);
    return;
  }
  head.template RoundTo<E>();
  const float scale = head.StoreFp8((value ? pages.values_fp8 : pages.keys_fp8) + offset, half);
  if (threadIdx.x % 32 == 0) (value ? pages.value_scale : pages.key_scale)[offset / in.head_dim] = scale;
}

template <typename E, int kPer, int kChunks>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(Input<E> in, RotaryGradients<E> grads, E* grad_qkv, float* partial) {
  using H = Head<kPer, kChunks>;
  const int turned = in.heads + in.kv_heads, all = turned + in.kv_heads, half = in.head_dim / 2;
  const int64_t items = in.tokens * all;
  H sums[2] = {};  // of the gradients of q_norm and k_norm
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; item < items;
       item += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t token = item / all;
    const int h = static_cast<int>(item % all);
    const E* from = h < in.heads ? grads.q + token * grads.q_row + h * in.head_dim
                    : h < turned ? grads.k + token * grads.k_row + (h - in.heads) * in.head_dim
                                 : grads.v + token * grads.v_row + (h - turned) * in.head_dim;
    H grad;
    grad.Load(from, half);
    if (h < turned) {
      const int64_t angle = static_cast<int64_t>(in.positions[token]) * half;
      grad.Rotate(in.cos + angle, in.sin + angle, half, -1.0f);
      if (in.q_norm != nullptr) {
        H x, weight;
        x.Load(in.qkv + item * in.head_dim, half);
        weight.Load(h < in.heads ? in.q_norm : in.k_norm, half);
        const float inverse = x.InverseRms(in.head_dim, in.eps);
        float along = 0;
#pragma unroll
        for (int j = 0; j < H::kSize; ++j) {
          const float low = grad.low[j] * x.low[j] * inverse, high = grad.high[j] * x.high[j] * inverse;
          if (h < in.heads) {
            sums[0].low[j] += low;
            sums[0].high[j] += high;
          } else {
            sums[1].low[j] += low;
            sums[1].high[j] += high;
          }
          grad.low[j] *= weight.low[j];
          grad.high[j] *= weight.high[j];
          along += grad.low[j] * x.low[j] + grad.high[j] * x.high[j];
        }
        const float back = WarpSum(along) * inverse * inverse * inverse / static_cast<float>(in.head_dim);
#pragma unroll
        for (int j = 0; j < H::kSize; ++j) {
          grad.low[j] = grad.low[j] * inverse - x.low[j] * back;
          grad.high[j] = grad.high[j] * inverse - x.high[j] * back;
        }
      }
    }
    grad.Store(grad_qkv + item * in.head_dim, half);
  }
  if (in.q_norm == nullptr) return;

  extern __shared__ float warps[];  // [kWarps, 2, head_dim]
  float* mine = warps + (threadIdx.x / 32) * 2 * in.head_dim;
  sums[0].Store(mine, half);
  sums[1].Store(mine + in.head_dim, half);
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * in.head_dim; i += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += warps[w * 2 * in.head_dim + i];
    partial[static_cast<int64_t>(blockIdx.x) * 2 * in.head_dim + i] = sum;
  }
}

// For heads of 128 in bfloat16: a warp takes a token, whose angles it loads once, and four heads at a time.
// Eight lanes hold a head, each eight neighbours of the first half and their partners.
struct Quarter {
  static constexpr int kHalf = 64, kSize = 8;
  float low[kSize], high[kSize];

  static __device__ int First() { return static_cast<int>(threadIdx.x) % 8 * kSize; }
  // Which of the four heads.
  static __device__ int Group() { return static_cast<int>(threadIdx.x) % 32 / 8; }

  __device__ void Load(const __nv_bfloat16* from) {
    LoadVector<kSize>(from + First(), low);
    LoadVector<kSize>(from + kHalf + First(), high);
  }
  __device__ void Store(__nv_bfloat16* to) const {
    StoreVector<kSize>(low, to + First());
    StoreVector<kSize>(high, to + kHalf + First());
  }

  // An FP8 product, whose first element's column is column[0].
  __device__ void LoadProduct(const float* from, float row, const float* column) {
    LoadFloats<kSize>(from + First(), low);
    LoadFloats<kSize>(from + kHalf + First(), high);
    Rescale<kSize>(low, row, column + First());
    Rescale<kSize>(high, row, column + kHalf + First());
    Round();
  }
  __device__ void Round() {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      low[j] = RoundedToBf16(low[j]);
      high[j] = RoundedToBf16(high[j]);
    }
  }

  // Rounded to bfloat16 and then as e4m3, divided by a power of two; returns that.
  __device__ float StoreFp8(uint8_t* to) {
    Round();
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kSize; ++j) largest = fmaxf(largest, fmaxf(fabsf(low[j]), fabsf(high[j])));
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    const float scale = E4m3PowerOfTwoScale(largest), inverse = 1.0f / scale;
    StoreFp8Half(low, inverse, to + First());
    StoreFp8Half(high, inverse, to + kHalf + First());
    return scale;
  }
  static __device__ void StoreFp8Half(const float values[kSize], float by, uint8_t* to) {
    alignas(8) uint16_t raw[kSize / 2];
#pragma unroll
    for (int i = 0; i < kSize; i += 2) {
      raw[i / 2] = __nv_cvt_float2_to_fp8x2(make_float2(values[i] * by, values[i + 1] * by), __NV_SATFINITE,
                                            __NV_E4M3);
    }
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(raw);
  }

  static __device__ float HeadSum(float x) {
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
  }
  // Added up in the order of Head::InverseRms, so that rollouts and training have the same bits.
  __device__ float InverseRms(float eps) const {
    float sums[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      float squares = 0;
#pragma unroll
      for (int j = 2 * part; j < 2 * part + 2; ++j) squares += low[j] * low[j] + high[j] * high[j];
      sums[part] = HeadSum(squares);
    }
    return rsqrtf(((sums[0] + sums[2]) + (sums[1] + sums[3])) / (2 * kHalf) + eps);
  }

  __device__ void Rotate(const float cos[kSize], const float sin[kSize], float direction) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float a = low[j], b = high[j], c = cos[j], s = direction * sin[j];
      low[j] = a * c - b * s;
      high[j] = b * c + a * s;
    }
  }
};

// `shares` warps divide a token's heads among themselves.
template <bool kStores>
__global__ void __launch_bounds__(kThreads) ForwardRowsKernel(Input<__nv_bfloat16> in, __nv_bfloat16* rotated,
                                                              Pages<__nv_bfloat16> pages, int shares) {
  constexpr int kDim = 2 * Quarter::kHalf;
  Overlap();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t token = item / shares;
  if (token >= in.tokens) return;
  const int position = in.positions[token];
  if (position < 0) return;
  const int turned = in.heads + in.kv_heads, all = turned + in.kv_heads;
  const int64_t angle = static_cast<int64_t>(position) * Quarter::kHalf + Quarter::First();
  float cos[Quarter::kSize], sin[Quarter::kSize];
  LoadFloats<Quarter::kSize>(in.cos + angle, cos);
  LoadFloats<Quarter::kSize>(in.sin + angle, sin);
#pragma unroll 2
  for (int h = static_cast<int>(item % shares) * 4 + Quarter::Group(); h < (kStores ? all : turned);
       h += 4 * shares) {
    Quarter head;
    const int64_t place = (token * all + h) * kDim;
    if (kStores && in.product != nullptr) {
      head.LoadProduct(in.product + place, in.scale.row[token], in.scale.column + h * kDim);
    } else {
      head.Load(in.qkv + place);
    }
    if (h < turned) {
      if (in.q_norm != nullptr) {
        Quarter weight;
        weight.Load(h < in.heads ? in.q_norm : in.k_norm);
        const float inverse = head.InverseRms(in.eps);
#pragma unroll
        for (int j = 0; j < Quarter::kSize; ++j) {
          head.low[j] *= inverse * weight.low[j];
          head.high[j] *= inverse * weight.high[j];
        }
      }
      head.Rotate(cos, sin, 1.0f);
      head.Store(rotated + (token * turned + h) * kDim);
    }
    if (!kStores || h < in.heads) continue;
    const bool value = h >= turned;
    const int64_t offset =
        pages.Offset(token, position, value ? h - turned : h - in.heads, in.kv_heads, kDim);
    if (offset < 0) continue;
    if (pages.keys_fp8 == nullptr) {
      head.Store((value ? pages.values : pages.keys) + offset);
      continue;
    }
    const float scale = head.StoreFp8((value ? pages.values_fp8 : pages.keys_fp8) + offset);
    if (Quarter::First() == 0) (value ? pages.value_scale : pages.key_scale)[offset / kDim] = scale;
  }
}

// What a head's norm makes of its gradient; `sums` takes that of the weight.
__device__ __forceinline__ void NormBackward(const Quarter& x, const Quarter& weight, float eps,
                                             Quarter* grad, Quarter* sums) {
  const float inverse = x.InverseRms(eps);
  float along = 0;
#pragma unroll
  for (int j = 0; j < Quarter::kSize; ++j) {
    sums->low[j] += grad->low[j] * x.low[j] * inverse;
    sums->high[j] += grad->high[j] * x.high[j] * inverse;
    grad->low[j] *= weight.low[j];
    grad->high[j] *= weight.high[j];
    along += grad->low[j] * x.low[j] + grad->high[j] * x.high[j];
  }
  const float back = Quarter::HeadSum(along) * inverse * inverse * inverse / (2 * Quarter::kHalf);
#pragma unroll
  for (int j = 0; j < Quarter::kSize; ++j) {
    grad->low[j] = grad->low[j] * inverse - x.low[j] * back;
    grad->high[j] = grad->high[j] * inverse - x.high[j] * back;
  }
}

// Four heads at a time are of one kind, as the numbers of both are multiples of four.
__global__ void __launch_bounds__(kThreads, 2)
    BackwardRowsKernel(Input<__nv_bfloat16> in, RotaryGradients<__nv_bfloat16> grads, __nv_bfloat16* grad_qkv,
                       float* partial) {
  constexpr int kDim = 2 * Quarter::kHalf;
  const int turned = in.heads + in.kv_heads, all = turned + in.kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Quarter q_sums = {}, k_sums = {};
  for (int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + warp; token < in.tokens;
       token += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t angle = static_cast<int64_t>(in.positions[token]) * Quarter::kHalf + Quarter::First();
    float cos[Quarter::kSize], sin[Quarter::kSize];
    LoadFloats<Quarter::kSize>(in.cos + angle, cos);
    LoadFloats<Quarter::kSize>(in.sin + angle, sin);
#pragma unroll 2
    for (int h = Quarter::Group(); h < all; h += 4) {
      const int64_t place = (token * all + h) * kDim;
      Quarter grad;
      grad.Load(h < in.heads ? grads.q + token * grads.q_row + h * kDim
                : h < turned ? grads.k + token * grads.k_row + (h - in.heads) * kDim
                             : grads.v + token * grads.v_row + (h - turned) * kDim);
      if (h < turned) {
        grad.Rotate(cos, sin, -1.0f);
        if (in.q_norm != nullptr) {
          Quarter x, weight;
          x.Load(in.qkv + place);
          weight.Load(h < in.heads ? in.q_norm : in.k_norm);
          if (h < in.heads) {
            NormBackward(x, weight, in.eps, &grad, &q_sums);
          } else {
            NormBackward(x, weight, in.eps, &grad, &k_sums);
          }
        }
      }
      grad.Store(grad_qkv + place);
    }
  }
  if (in.q_norm == nullptr) return;

  extern __shared__ float warps[];  // [kWarps, 2, head_dim]
  float* mine = warps + warp * 2 * kDim + Quarter::First();
  const auto add_up = [](float x) {  // over the four heads
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
  };
#pragma unroll
  for (int j = 0; j < Quarter::kSize; ++j) {
    const float sums[4] = {add_up(q_sums.low[j]), add_up(q_sums.high[j]), add_up(k_sums.low[j]),
                           add_up(k_sums.high[j])};
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      if (Quarter::Group() == part) mine[part * Quarter::kHalf + j] = sums[part];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * kDim; i += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += warps[w * 2 * kDim + i];
    partial[static_cast<int64_t>(blockIdx.x) * 2 * kDim + i] = sum;
  }
}

template <typename... P>
bool Aligned(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// Whether the kernels above take it.
template <typename E>
bool HasRowKernels(const Input<E>& in) {
  return sizeof(E) == 2 && in.head_dim == 2 * Quarter::kHalf && in.heads % 4 == 0 && in.kv_heads % 4 == 0 &&
         Aligned(in.qkv, in.q_norm, in.k_norm, in.cos, in.sin, in.product, in.scale.column);
}

// Calls f<kPer, kChunks>() with how a head is divided among a warp.
template <typename F>
void WithDivision(int head_dim, F f) {
  if (head_dim > 256) ThrowCudaError("rotation on the GPU", "the kernel takes heads of up to 256 elements");
  head_dim == 128 ? f.template operator()<2, 1>() : f.template operator()<1, 4>();
}

}  // namespace

template <typename T>
void RotaryForwardCuda(const RotaryInput<T>& in, T* rotated, const PagedKv<T>* pages, void* stream) {
  if (in.tokens == 0) return;
  using E = typename CudaElement<T>::Type;
  Pages<E> to{};
  if (pages != nullptr) {
    to = {OnDevice(pages->keys), OnDevice(pages->values), pages->page_size, pages->page_table,
          pages->table_stride,   pages->sequence,         pages->keys_fp8,  pages->values_fp8,
          pages->key_scale,      pages->value_scale};
  }
  if constexpr (sizeof(E) == 2) {
    const bool stores = to.page_table != nullptr;
    if (HasRowKernels(MakeInput(in)) && (stores || in.product == nullptr) &&
        Aligned(rotated, to.keys, to.values, to.keys_fp8, to.values_fp8)) {
      const int shares = stores ? (in.heads + 2 * in.kv_heads) / 4 : 1;
      LaunchEarlyIfSmall(stores ? ForwardRowsKernel<true> : ForwardRowsKernel<false>,
                         static_cast<unsigned>((in.tokens * shares + kWarps - 1) / kWarps), kThreads, 0,
                         static_cast<cudaStream_t>(stream), MakeInput(in), OnDevice(rotated), to, shares);
      CheckCuda(cudaGetLastError(), "rotation on the GPU");
      return;
    }
  }
  const int64_t items = in.tokens * (in.heads + (pages ? 2 : 1) * in.kv_heads);
  WithDivision(in.head_dim, [&]<int kPer, int kChunks>() {
    LaunchEarlyIfSmall(ForwardKernel<E, kPer, kChunks>, static_cast<unsigned>((items + kWarps - 1) / kWarps),
                       kThreads, 0, static_cast<cudaStream_t>(stream), MakeInput(in), OnDevice(rotated), to);
  });
  CheckCuda(cudaGetLastError(), "rotation on the GPU");
}

int64_t RotaryPartialRows() { return kPartialRows; }

template <typename T>
void RotaryBackwardCuda(const RotaryInput<T>& in, const RotaryGradients<T>& grads, T* grad_qkv,
                        float* partial, float* grad_norms, void* stream) {
  using E = typename CudaElement<T>::Type;
  const RotaryGradients<E> from{OnDevice(grads.q), OnDevice(grads.k), OnDevice(grads.v),
                                grads.q_row,       grads.k_row,       grads.v_row};
  const auto queue = static_cast<cudaStream_t>(stream);
  const size_t shared = kWarps * 2 * in.head_dim * sizeof(float);
  const bool vectors = grads.q_row % 8 == 0 && grads.k_row % 8 == 0 && grads.v_row % 8 == 0 &&
                       Aligned(grads.q, grads.k, grads.v, grad_qkv);
  bool done = false;
  if constexpr (sizeof(E) == 2) {
    if (vectors && HasRowKernels(MakeInput(in))) {
      BackwardRowsKernel<<<static_cast<unsigned>(kPartialRows), kThreads, shared, queue>>>(
          MakeInput(in), from, OnDevice(grad_qkv), partial);
      done = true;
    }
  }
  if (!done) {
    WithDivision(in.head_dim, [&]<int kPer, int kChunks>() {
      BackwardKernel<E, kPer, kChunks><<<static_cast<unsigned>(kPartialRows), kThreads, shared, queue>>>(
          MakeInput(in), from, OnDevice(grad_qkv), partial);
    });
  }
  if (in.q_norm != nullptr) SumColumns(kPartialRows, 2 * in.head_dim, partial, grad_norms, queue);
  CheckCuda(cudaGetLastError(), "the gradient of rotation on the GPU");
}

#define AUGUR_INSTANTIATE(T)                                                                                \
  template void RotaryForwardCuda<T>(const RotaryInput<T>&, T*, const PagedKv<T>*, void*);                  \
  template void RotaryBackwardCuda<T>(const RotaryInput<T>&, const RotaryGradients<T>&, T*, float*, float*, \
                                      void*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
