// Which GPU the kernels are chosen for, by its compute capability: 90 for 9.0.
#pragma once

namespace augur {

// What the environment's AUGUR_GPU names, as "8.0", so that what other GPUs run can be tried on this one; 0
// without it. Throws where it names no compute capability.
int NamedGpuGeneration();

// `named`, or `present` where it is 0. Throws where the GPU that is present cannot run what the named one is
// given.
int ChooseGpuGeneration(int named, int present);

// Whether the current GPU runs the kernels that were compiled in.
bool HasKernelsForGpu();
// Throws what a GPU of this compute capability is told where it does not.
[[noreturn]] void ThrowGpuWithoutKernels(int generation);

// That of the current GPU, or the one AUGUR_GPU names.
int GpuGeneration();

// Whether the current GPU runs kernels on Hopper's tensor cores, and they are compiled in.
bool HasHopperKernels();

// Whether kernels may start before the one in front of them is done: Hopper and later, and compiled for it.
bool StartsEarly();

}  // namespace augur
