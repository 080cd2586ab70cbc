// Sampling with support capture: from a row of logits the log-sum-exp, the K most likely tokens, the sampled
// token and its log-prob.
//
// The token is drawn by inverse CDF over the vocabulary in order of id: with u uniform in (0, 1) from the
// draw's counters, the first token whose cumulative probability exceeds u. CPU and CUDA thus draw the same
// token but where u falls within rounding of a boundary.
#pragma once

#include <cstdint>

#include "base/random.h"
#include "kernels/simd/element.h"

namespace augur {

// One draw: which row of logits, and the Philox counters that decide it. Several draws may share a row.
struct SampleDraw {
  int32_t row = 0;
  uint64_t key = 0, counter_low = 0, counter_high = 0;
};

// A draw is a pure function of these four.
AUGUR_HOST_DEVICE SampleDraw MakeSampleDraw(int32_t row, uint64_t seed, uint64_t prompt, uint32_t sample,
                                            uint32_t position) {
  return {row, seed, prompt, (static_cast<uint64_t>(sample) << 32) | position};
}

// Uniform in (0, 1) with 53 bits.
AUGUR_HOST_DEVICE double UniformOf(const SampleDraw& draw) {
  const Philox words = Philox::At(draw.key, draw.counter_low, draw.counter_high);
  const uint64_t bits = ((static_cast<uint64_t>(words.word[0]) << 32) | words.word[1]) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

struct SampleSettings {
  int64_t vocab_size = 0;  // tokens; columns from here on are padding of the head and are never looked at
  int64_t stride = 0;      // from one row to the next, at least vocab_size
  // Logits are divided by it; 0 takes the most likely token, log-probs then being at 1.
  float temperature = 1;
  int32_t support = 0;  // K, less than vocab_size; 0 records none
  // Truncations, one after the other: the top_k most likely (0: all), of these the fewest whose probability
  // reaches top_p (1: all), of these those at least min_p times as likely as the first (0: all). Log-probs
  // and the support remain those of the whole distribution.
  int64_t top_k = 0;
  float top_p = 1;
  float min_p = 0;

  bool truncates() const { return top_k > 0 || top_p < 1 || min_p > 0; }
  int64_t columns() const { return support > 0 ? support + 1 : 0; }
};

// Results by draw. Ties in likelihood fall to the lower id. A row is not finite when it holds a NaN or
// +infinity, or nothing above -infinity: then finite is 0, the token -1, the log-prob NaN, the support
// unused.
struct SampleResults {
  int32_t* tokens = nullptr;          // [draws]
  float* logprobs = nullptr;          // [draws]
  int32_t* support_ids = nullptr;     // [draws, columns]: the sampled token, then those of the K most likely
  float* support_logprobs = nullptr;  // [draws, columns]  that are not it, falling; the rest -1 and -infinity
  uint8_t* finite = nullptr;          // [draws]
};

// T is float or BFloat16; logits [rows, stride]. Results do not depend on the number of threads nor on the
// other rows.
template <typename T>
void SampleSupportCpu(const T* logits, const SampleDraw* draws, int64_t count, const SampleSettings& settings,
                      const SampleResults& out);

// The same on a GPU: `logits`, `draws` and the results are device pointers, `workspace` of
// SampleSupportWorkspaceBytes bytes, everything queued on `stream` (a cudaStream_t) without waiting.
int64_t SampleSupportWorkspaceBytes(int64_t count, const SampleSettings& settings);
void SampleSupportCuda(ElementType type, const void* logits, const SampleDraw* draws, int64_t count,
                       const SampleSettings& settings, const SampleResults& out, void* workspace,
                       void* stream);

}  // namespace augur
