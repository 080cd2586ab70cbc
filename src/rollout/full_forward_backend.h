// The plain backend: every step runs the whole sequences through the training forward. The reference that the
// others are compared with; its pages hold token ids.
#pragma once

#include <memory>

#include "rollout/backend.h"

namespace augur {

std::unique_ptr<Backend> MakeFullForwardBackend(const Model& model, const EngineOptions& options);

}  // namespace augur
