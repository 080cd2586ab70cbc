// `augur sft`: supervised fine-tuning, prompts in, answers out.
#pragma once

#include "config/config.h"
#include "train/run/run_loop.h"

namespace augur {

// Trains on data.train: each row's prompt as EncodePrompt makes it, followed by its whole answer and the
// token that ends a response; the loss is the answer's. Rows are visited in an order that follows from
// run.seed. With sft.from_scratch model.path needs a configuration and a tokenizer, and weights are drawn
// from run.seed.
//
// Runs to sft.steps, or until a signal asks to stop; resumes as run.resume says (train/run/resume.h).
// Progress goes to standard error. Writes config.yaml, metrics.jsonl, tensorboard/, checkpoints/, and at the
// end model/.
RunResult RunSft(const SftConfig& config);

}  // namespace augur
