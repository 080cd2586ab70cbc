// Supervised fine-tuning: prompts in, answers out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "config/config.h"
#include "model/model.h"

namespace augur {

struct SftHooks {
  // Called after every update with its number, from 1, and its figures.
  std::function<void(int64_t step, const std::map<std::string, double>& metrics)> step;
  // Asked before every update; true ends the training there.
  std::function<bool()> stop;
};

// Trains on data.train: each row's prompt as EncodePrompt makes it, followed by its answer and the token that
// ends a response; the loss is the answer's. Rows are visited in an order that follows from run.seed. With
// sft.from_scratch model.path needs a configuration and a tokenizer, and weights are drawn from run.seed.
// Writes the model to RUN/model.
void RunSft(const SftConfig& config, const SftHooks& hooks);

}  // namespace augur
