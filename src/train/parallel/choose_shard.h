// What the ranks divide among themselves, where parallel.shard is auto.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "config/config.h"

namespace augur {

// parallel.shard; for auto the first of none, states and full whose training state leaves at least two fifths
// of a rank's memory to activations and generation, said on standard error. The same on every rank. A process
// that is alone divides nothing.
Shard ChooseShard(const ParallelSection& parallel, const ModelSection& model,
                  const OptimizerFields& optimizer, at::Device device);

// Bytes of weights, gradients, master weights and states for each parameter on each of `ranks` ranks.
double StateBytes(Shard shard, Precision precision, StateDtype states, int ranks);

}  // namespace augur
