// The prompts of `augur generate`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rollout/engine.h"
#include "rollout/prompts.h"

namespace augur {

// Side by side. A prompt that cannot be read has a fault, which becomes the error of its rollouts, so that
// the others go on.
struct GenerateInput {
  std::vector<GenerateRequest> requests;
  std::vector<std::string> faults;  // with the place of the prompt; "" where there is none

  void Add(std::string where, std::vector<int32_t> tokens, std::string fault = "");
};

// {"tokens":[...]} lines of a file; of a text.
GenerateInput ReadTokenLines(const std::string& file);
GenerateInput TokensOfText(const std::string& text);

// Texts given on the command line, and the prompts of files; `model` is the directory that `text` is of. Says
// on standard error which chat format they go through, if any does.
GenerateInput ReadTextPrompts(const std::vector<std::string>& texts, const std::vector<std::string>& files,
                              const std::string& model, const ModelText& text, const DataSection& data);

}  // namespace augur
