// A command whose ranks divide one piece of work.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace augur {

// Throws Error on the ranks whose flags, model or `inputs` are not the first rank's: each would answer a part
// of the others' questions. `inputs`: a line for each prompt that says what it holds. All ranks call it.
void ExpectSameOnRanks(const CLI::App& command, const std::string& model,
                       const std::vector<std::string>& inputs);

// "prompt 3: 17 tokens, 0f3c...": what of a prompt ranks compare.
std::string PromptLine(size_t place, const std::vector<int32_t>& tokens, const std::string& answer = "");

}  // namespace augur
