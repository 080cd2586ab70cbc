// The verifiers by name: what `augur verify`, the trainer and the evaluation call.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/prompt.h"

namespace augur {

struct Verifier {
  std::string_view name;
  // One line for --help.
  std::string_view summary;
  // Scores a response against a ground truth. Time and memory are linear in both; nothing recurses on them
  // or runs them. Throws Error at "answer" if the ground truth is not of the kind this verifier takes.
  double (*score)(std::string_view response, const Json& answer);
  // What this verifier reads as the response's answer, for counting votes: equal texts are equal answers.
  // Nothing where it finds none.
  std::optional<std::string> (*answer)(std::string_view response);
  // What a correct response scores, and any other.
  double right = 1.0;
  double wrong = 0.0;
};

std::span<const Verifier> Verifiers();

// Throws Error at `where` with the nearest name if there is none called `name`.
const Verifier& FindVerifier(std::string_view name, std::string_view where);

// The verifier called `name`, or for "auto" the one that suits the prompt, the same in training, evaluation
// and `augur prompts`: by its ground truth (an object is a countdown puzzle), else by its data source's name
// (GSM8K, countdown, DAPO-Math, AIME, AMC, MATH, the sorting and arithmetic tasks), else `exact`. Throws
// Error at `where` as above.
const Verifier& VerifierFor(std::string_view name, const Prompt& prompt, std::string_view where);

// Why no response can be right for this ground truth, or nothing if the ground truth itself, written as
// a response of the form the verifier asks for, is.
std::optional<std::string> WhyUnmatchable(const Verifier& verifier, const Json& answer);

// One warning ("file:line: ...") for every prompt whose ground truth no response can match under
// VerifierFor(verifier, prompt, where).
std::vector<std::string> UnmatchableWarnings(std::string_view verifier, std::span<const Prompt> prompts,
                                             std::string_view where);

}  // namespace augur
