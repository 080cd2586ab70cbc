// Supervised fine-tuning's examples: prompts with the whole answer as the target.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/step/sft_step.h"

namespace augur {

// The rows of data.train: the prompt's tokens, then the answer as the file has it and the token that ends it:
// the one that ends an assistant's turn where the prompt is a conversation, else the tokenizer's eos_token.
// Examples longer than the model's context are dealt with as data.overlong says, of which those that are cut
// lose the beginning of their prompt. Throws Error naming the row.
std::vector<SftExample> LoadSftExamples(const SftConfig& config);

}  // namespace augur
