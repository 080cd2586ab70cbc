// The responses of the token viewer, sampled to a size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/json.h"
#include "metrics/json_lines.h"

namespace augur {

// tokens.jsonl as the page takes it, in at most about `budget` bytes of JSON:
//   {"recorded": responses in the file, "whole_support": bool, "vocabulary": {id: text}, "responses": [
//     {"step", "source", "prompt", "answer", "reward", "advantage", "finish", "rule", "delta", "length": of
//     the whole response, "tokens": [
//       [id, ratio, D, direction, local, global, A, flags, mu_tail, pi_tail,
//        [id, mu, pi, id, mu, pi, ...]]]}]}
// flags: 1 kept, 2 outside, 4 disagrees, 8 missing. Where not all fits, first the tokens inside the trust
// region lose their support, then responses are drawn at random; the notes say so. Null where there is
// nothing.
Json ReadViewerTokens(const std::filesystem::path& run, size_t budget, Notes* notes);

// At most about `limit` of the steps that have responses, with the newest; by bisection, since the file may
// be large.
std::vector<int64_t> RecordedSteps(const std::filesystem::path& run, size_t limit);

// The same as ReadViewerTokens of one step, or of the last before it that has responses.
Json ReadTokensOfStep(const std::filesystem::path& run, int64_t step, size_t budget);

}  // namespace augur
