// Lets one kernel test run on every device the build knows: arrays are copied to the device and back around a
// call.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#ifdef AUGUR_WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace augur {

enum class Device { kCpu, kCuda };

inline std::vector<Device> BuiltDevices() {
#ifdef AUGUR_WITH_CUDA
  return {Device::kCpu, Device::kCuda};
#else
  return {Device::kCpu};
#endif
}

inline std::string DeviceName(const testing::TestParamInfo<Device>& info) {
  return info.param == Device::kCpu ? "Cpu" : "Cuda";
}

// An array on a device. Made from host values, read back with ToHost().
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Device device, const std::vector<T>& values) : device_(device), size_(values.size()) {
    if (device == Device::kCpu) {
      host_ = values;
      return;
    }
#ifdef AUGUR_WITH_CUDA
    void* address = nullptr;
    EXPECT_EQ(cudaMalloc(&address, std::max<size_t>(size_, 1) * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(address, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    memory_ = std::shared_ptr<void>(address, cudaFree);
#endif
  }

  T* data() { return device_ == Device::kCpu ? host_.data() : static_cast<T*>(memory_.get()); }

  std::vector<T> ToHost() const {
    if (device_ == Device::kCpu) return host_;
    std::vector<T> values(size_);
#ifdef AUGUR_WITH_CUDA
    EXPECT_EQ(cudaMemcpy(values.data(), memory_.get(), size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
#endif
    return values;
  }

 private:
  Device device_;
  size_t size_;
  std::vector<T> host_;
  std::shared_ptr<void> memory_;
};

// Captures f(stream) as a graph on the GPU and runs it `runs` times, one right after the other.
template <typename F>
void RunGraphOnGpu([[maybe_unused]] int runs, [[maybe_unused]] F f) {
#ifdef AUGUR_WITH_CUDA
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  f(static_cast<void*>(stream));
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph), cudaSuccess);
  for (int i = 0; i < runs; ++i) ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
#endif
}

}  // namespace augur
