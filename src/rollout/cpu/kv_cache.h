// The keys and values of all layers, in pages.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "family/config.h"
#include "kernels/decode/paged_attention.h"

namespace augur {

template <typename T>
class CpuKvCache {
 public:
  explicit CpuKvCache(const ModelConfig& config)
      : shape_{static_cast<int>(config.heads), static_cast<int>(config.kv_heads),
               static_cast<int>(config.head_dim)},
        layers_(config.layers) {}

  const PagedShape& shape() const { return shape_; }
  KvPages<T> layer(size_t index) const { return {layers_[index].keys.get(), layers_[index].values.get()}; }

  int64_t page_bytes() const {
    return static_cast<int64_t>(layers_.size() * sizeof(T)) *
           (shape_.key_elements() + shape_.value_elements());
  }

  // Contents are lost. Memory is left uninitialised: the system provides it where pages come into use.
  void Reserve(int64_t pages) {
    for (Layer& layer : layers_) {
      layer = {};
      if (pages == 0) continue;
      layer.keys = std::make_unique_for_overwrite<T[]>(pages * shape_.key_elements());
      layer.values = std::make_unique_for_overwrite<T[]>(pages * shape_.value_elements());
    }
  }

  void CopyPage(int32_t from, int32_t to) {
    const int64_t keys = shape_.key_elements(), values = shape_.value_elements();
    for (Layer& layer : layers_) {
      std::copy_n(layer.keys.get() + from * keys, keys, layer.keys.get() + to * keys);
      std::copy_n(layer.values.get() + from * values, values, layer.values.get() + to * values);
    }
  }

 private:
  struct Layer {
    std::unique_ptr<T[]> keys, values;
  };
  PagedShape shape_;
  std::vector<Layer> layers_;
};

}  // namespace augur
