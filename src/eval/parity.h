// Zero-update parity: how far what the rollout engine records lies from what the trainer computes with the
// same weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/forward.h"
#include "model/model.h"
#include "rollout/engine.h"

namespace augur {

// One entry per sampled token.
struct Parity {
  std::vector<double> differences;  // |log mu - log pi| of the sampled token
  std::vector<double> divergences;  // KL(mu || pi) over the whole vocabulary
  // The same where the trainer's tokens go through the experts that the rollout's went through; empty where
  // the engine records none.
  std::vector<double> replayed_differences, replayed_divergences;
};

// Samples `tokens` tokens after each prompt at temperature 1 with every log-prob recorded, then rescores them
// with the trainer's forward over `model`. Throws Error for a prompt the engine cannot take.
Parity MeasureParity(const Model& model, const ForwardOptions& forward, Engine& engine,
                     std::span<const GenerateRequest> prompts, int64_t tokens, uint64_t seed);

// The share of values above a bound.
double ShareAbove(const std::vector<double>& values, double bound);

}  // namespace augur
