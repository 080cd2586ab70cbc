#include "reward/verifier.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "reward/countdown.h"
#include "reward/gsm8k.h"
#include "reward/math_dapo.h"
#include "reward/math_form.h"
#include "reward/math_strict.h"
#include "reward/python_text.h"

namespace augur {
namespace {

// Beyond this a JSON number may have lost digits on its way here.
constexpr double kLargestExactReal = 0x1p53;

std::string AnswerText(const Json& answer) {
  if (answer.is_string()) return answer.get<std::string>();
  if (answer.is_number_float() && std::abs(answer.get<double>()) >= kLargestExactReal) {
    throw Error("answer", "the number is too large to be exact", "write it as text, in quotes");
  }
  if (answer.is_number()) return answer.dump();
  throw Error("answer", fmt::format("expected text or a number, found {}", KindOf(answer)),
              "write it as text");
}

double ScoreExact(std::string_view response, std::string_view answer) {
  return PythonStrip(response) == PythonStrip(answer) ? 1.0 : 0.0;
}

template <double (*kScore)(std::string_view, std::string_view)>
double WithText(std::string_view response, const Json& answer) {
  return kScore(response, AnswerText(answer));
}

std::optional<std::string> NotEmpty(std::string text) {
  return text.empty() ? std::nullopt : std::optional(std::move(text));
}

// Different spellings of one answer are one vote.
template <std::optional<std::string_view> (*kAnswer)(std::string_view)>
std::optional<std::string> MathAnswer(std::string_view response) {
  const auto found = kAnswer(response);
  if (!found) return std::nullopt;
  std::string canonical = CanonicalForm(*found).value;
  return NotEmpty(canonical.empty() ? std::string(PythonStrip(*found)) : std::move(canonical));
}

std::optional<std::string> FlexibleAnswer(std::string_view response) {
  auto found = Gsm8kFlexibleAnswer(response);
  return found == "." ? std::nullopt : std::move(found);  // a full stop is no answer, though verl reads it
}

std::optional<std::string> WholeResponse(std::string_view response) {
  return NotEmpty(std::string(PythonStrip(response)));
}

// How a response writes an answer; each verifier reads one of them.
constexpr std::string_view kForms[] = {"Answer: {}", "\\boxed{{{}}}", "#### {}", "{}"};

constexpr Verifier kVerifiers[] = {
    {"math_dapo", "last line \"Answer: ...\" (else \\boxed{}), as verl scores DAPO-Math",
     WithText<ScoreMathDapo>, MathAnswer<MathDapoAnswer>, 1.0, -1.0},
    {"math_dapo_boxed", "last \\boxed{...}, to the letter, as verl scores it", WithText<ScoreMathDapoBoxed>,
     MathAnswer<MathDapoBoxedAnswer>, 1.0, -1.0},
    {"math_strict", "last \\boxed{...} or \"Answer: ...\", compared as mathematics",
     WithText<ScoreMathStrict>, MathAnswer<MathStrictAnswer>},
    {"gsm8k", "last number after \"#### \", as verl scores GSM8K", WithText<ScoreGsm8k>, Gsm8kAnswer},
    {"gsm8k_flexible", "last number anywhere, as verl scores GSM8K", WithText<ScoreGsm8kFlexible>,
     FlexibleAnswer},
    {"countdown",
     "an expression that reaches the target with each number once; answer: {\"numbers\": "
     "[...], \"target\": n}",
     ScoreCountdown, CountdownAnswer},
    {"exact", "the answer itself, white space around it ignored", WithText<ScoreExact>, WholeResponse},
};

}  // namespace

std::span<const Verifier> Verifiers() { return kVerifiers; }

const Verifier& FindVerifier(std::string_view name, std::string_view where) {
  const auto found = std::ranges::find(kVerifiers, name, &Verifier::name);
  if (found != std::end(kVerifiers)) return *found;
  std::vector<std::string_view> names;
  for (const Verifier& verifier : kVerifiers) names.push_back(verifier.name);
  throw UnknownName(where, "verifier", name, names);
}

namespace {

// The verifier that a data source's name suggests, or null.
const Verifier* VerifierForSource(std::string_view data_source) {
  std::string source;
  for (const char c : data_source) source += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::pair<std::string_view, std::string_view> kBySource[] = {
      {"countdown", "countdown"}, {"gsm8k", "gsm8k"},
      {"sort", "exact"},          {"arithmetic", "gsm8k_flexible"},
      {"dapo", "math_dapo"},      {"aime", "math_dapo"},
      {"amc", "math_dapo"},       {"math", "math_strict"}};
  for (const auto& [part, verifier] : kBySource) {
    if (source.find(part) != std::string::npos) return &FindVerifier(verifier, data_source);
  }
  return nullptr;
}

}  // namespace

const Verifier& VerifierFor(std::string_view name, const Prompt& prompt, std::string_view where) {
  if (name != "auto") return FindVerifier(name, where);
  if (prompt.ground_truth.is_object()) return FindVerifier("countdown", where);
  const Verifier* found = VerifierForSource(prompt.data_source);
  return found != nullptr ? *found : FindVerifier("exact", where);
}

std::optional<std::string> WhyUnmatchable(const Verifier& verifier, const Json& answer) {
  try {
    if (verifier.score == ScoreCountdown) {
      verifier.score("", answer);  // throws if it is malformed; solving it is the model's part
      return std::nullopt;
    }
    const std::string text = AnswerText(answer);
    for (const std::string_view form : kForms) {
      if (verifier.score(fmt::format(fmt::runtime(form), text), answer) == verifier.right)
        return std::nullopt;
    }
    return fmt::format("the ground truth '{:.80}' cannot match itself under '{}'", text, verifier.name);
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<std::string> UnmatchableWarnings(std::string_view verifier, std::span<const Prompt> prompts,
                                             std::string_view where) {
  std::vector<std::string> warnings;
  for (const Prompt& prompt : prompts) {
    const auto why = WhyUnmatchable(VerifierFor(verifier, prompt, where), prompt.ground_truth);
    if (why) warnings.push_back(fmt::format("{}: {}", prompt.Where(), *why));
  }
  return warnings;
}

}  // namespace augur
