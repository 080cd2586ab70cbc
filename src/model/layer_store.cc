#include "model/layer_store.h"

namespace augur {

void PassLayers(LayerStore& store, size_t layers, bool backward) {
  for (size_t i = 0; i < layers; ++i) {
    store.Acquire(i, i + 1 < layers ? static_cast<int64_t>(i) + 1 : -1);
    store.Release(i);
  }
  for (size_t i = layers; backward && i-- > 0;) {
    store.Acquire(i, static_cast<int64_t>(i) - 1);
    store.TakeGradients(i, {});
    store.Release(i);
  }
}

}  // namespace augur
