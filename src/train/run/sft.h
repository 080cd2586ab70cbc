// `augur sft`: supervised fine-tuning, prompts in, answers out.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace augur {

struct SftOutcome {
  int64_t steps = 0;
  std::string stopped_by;  // the signal that ended it early, or empty
};

// Trains on data.train: each row's prompt as EncodePrompt makes it, followed by its answer and the token that
// ends a response; the loss is the answer's. Rows are visited in an order that follows from run.seed. With
// sft.from_scratch model.path needs a configuration and a tokenizer, and weights are drawn from run.seed.
//
// Runs to sft.steps, or until a signal asks to stop; resumes from the run directory's newest checkpoint as
// run.resume says. Progress goes to standard error. Writes config.yaml, metrics.jsonl, tensorboard/,
// checkpoints/, and at the end model/.
SftOutcome RunSft(const SftConfig& config);

}  // namespace augur
