// Marks a function that CPU and CUDA code both call.
#pragma once

#ifdef __CUDACC__
#define AUGUR_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define AUGUR_HOST_DEVICE inline
#endif
