#include "model/layer_store.h"

namespace augur {

void PassParts(LayerStore& store, const Model& model, bool backward) {
  const size_t layers = model.layers.size();
  {
    const PartUse embedding(&store, EmbeddingPart(model), 0);
  }
  for (size_t i = 0; i < layers; ++i) {
    const PartUse layer(&store, i, PartAfter(model, i));
  }
  {
    const PartUse head(&store, HeadPart(model));
  }
  for (size_t i = layers; backward && i-- > 0;) {
    const PartUse layer(&store, i, static_cast<int64_t>(i) - 1);
    store.TakeGradients(i, {});
  }
}

}  // namespace augur
