// SwiGLU of single values: the one formula of every CUDA kernel that computes it, so that generation and
// training have the same bits. For .cu files only.
#pragma once

namespace augur {

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// silu(gate) * up.
__device__ __forceinline__ float Swiglu(float gate, float up) { return gate * Sigmoid(gate) * up; }

}  // namespace augur
