#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/decode/sample_kernels.h"
#include "kernels/decode/sample_support.h"
#include "kernels/simd/parallel_work.h"
#include "kernels/thread_team.h"

namespace augur {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kBlock = kSampleBlock;

struct Candidate {
  float value;  // logit
  int32_t id;
};

// By falling likelihood, ties by rising id.
bool MoreLikely(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// What one sweep over a row leaves. The temperature divides differences of logits, never logits themselves,
// which may be large.
struct RowSummary {
  bool finite = false;
  float most = -kInfinity;  // largest logit
  double inverse_temperature = 1;
  double total = 0;                  // sum of exp((logit - most) / temperature)
  std::vector<double> block_totals;  // its parts by block
  std::vector<Candidate> best;       // the K most likely

  double Weight(float logit) const { return std::exp((double{logit} - most) * inverse_temperature); }
  double LogProb(float logit) const { return (double{logit} - most) * inverse_temperature - std::log(total); }
};

// A block of at most kBlock logits as floats, padded with -infinity to whole steps: where they lie, if that
// will do, or in `buffer`.
template <typename T>
const float* WidenBlock(const SampleKernels& kernels, const T* from, int count, float* buffer) {
  const int padded = (count + kSampleStep - 1) / kSampleStep * kSampleStep;
  if constexpr (std::is_same_v<T, float>) {
    if (count == padded) return from;
    std::copy_n(from, count, buffer);
  } else {
    kernels.widen(from, count, buffer);
  }
  std::fill(buffer + count, buffer + padded, -kInfinity);
  return buffer;
}

// Keeps `best` sorted and at most `limit` long.
void Insert(Candidate candidate, size_t limit, std::vector<Candidate>* best) {
  if (best->size() < limit) {
    best->push_back(candidate);
  } else {
    best->back() = candidate;
  }
  for (size_t i = best->size() - 1; i > 0 && (*best)[i].value > (*best)[i - 1].value; --i) {
    std::swap((*best)[i], (*best)[i - 1]);
  }
}

void CollectBest(const SampleKernels& kernels, const float* block, int count, float block_most,
                 int32_t first_id, size_t limit, std::vector<Candidate>* best) {
  auto least = [&] { return best->size() < limit ? -kInfinity : best->back().value; };
  if (limit == 0 || !(block_most > least())) return;
  for (int i = 0; (i = kernels.next_above(block, i, count, least())) < count; ++i) {
    Insert({block[i], first_id + i}, limit, best);
  }
}

// All but the least likely, for analyses: above this many a sort is quicker than insertion.
constexpr size_t kMostInserted = 256;

template <typename T>
std::vector<Candidate> SortBest(const T* row, int64_t vocab_size, size_t limit) {
  std::vector<Candidate> best;
  best.reserve(vocab_size);
  for (int64_t i = 0; i < vocab_size; ++i) {
    const auto logit = static_cast<float>(row[i]);
    if (logit > -kInfinity) best.push_back({logit, static_cast<int32_t>(i)});
  }
  const size_t kept = std::min(limit, best.size());
  std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(kept), best.end(), MoreLikely);
  best.resize(kept);
  return best;
}

// One sweep: each block is read once and worked on in cache.
template <typename T>
RowSummary Summarize(const SampleKernels& kernels, const T* row, const SampleSettings& settings) {
  const int64_t blocks = (settings.vocab_size + kBlock - 1) / kBlock;
  const size_t keep = std::max<size_t>(settings.support, 1);
  const size_t inserted = keep > kMostInserted ? 0 : keep;
  RowSummary summary;
  if (settings.temperature > 0) summary.inverse_temperature = 1.0 / settings.temperature;
  const auto scale = static_cast<float>(summary.inverse_temperature);
  summary.best.reserve(inserted);
  std::vector<float> peaks(blocks);
  summary.block_totals.resize(blocks);
  alignas(64) float buffer[kBlock];
  bool any_nan = false;
  for (int64_t b = 0; b < blocks; ++b) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, settings.vocab_size - b * kBlock));
    const float* block = WidenBlock(kernels, row + b * kBlock, count, buffer);
    const float most = kernels.largest(block, count);
    peaks[b] = most;
    if (most == -kInfinity) {
      any_nan |= std::any_of(block, block + count, [](float x) { return std::isnan(x); });
      continue;
    }
    summary.most = std::max(summary.most, most);
    summary.block_totals[b] = kernels.sum(block, count, most, scale);
    any_nan |= std::isnan(summary.block_totals[b]);
    CollectBest(kernels, block, count, most, static_cast<int32_t>(b * kBlock), inserted, &summary.best);
  }
  summary.finite = !any_nan && std::isfinite(summary.most);
  if (!summary.finite) return summary;
  if (inserted == 0) summary.best = SortBest(row, settings.vocab_size, keep);
  for (int64_t b = 0; b < blocks; ++b) {
    if (peaks[b] == -kInfinity) continue;
    summary.block_totals[b] *= summary.Weight(peaks[b]);
    summary.total += summary.block_totals[b];
  }
  return summary;
}

template <typename T>
Candidate DrawFromAll(const SampleKernels& kernels, const T* row, const SampleSettings& settings,
                      const RowSummary& summary, double uniform) {
  const auto scale = static_cast<float>(summary.inverse_temperature);
  double target = uniform * summary.total;
  const int64_t blocks = static_cast<int64_t>(summary.block_totals.size());
  int64_t b = 0, last = 0;
  for (; b < blocks; ++b) {
    if (summary.block_totals[b] > 0) last = b;
    if (target < summary.block_totals[b]) break;
    target -= summary.block_totals[b];
  }
  if (b == blocks) b = last;  // rounding let the parts sum to less than the whole
  const int64_t first = b * kBlock;
  const auto count = static_cast<int>(std::min<int64_t>(kBlock, settings.vocab_size - first));
  alignas(64) float buffer[kBlock], weights[kBlock];
  kernels.weights(WidenBlock(kernels, row + first, count, buffer), count, summary.most, scale, weights);
  Candidate drawn{-kInfinity, -1};
  double cumulative = 0;
  for (int i = 0; i < count && !(cumulative > target); ++i) {
    if (weights[i] == 0) continue;
    cumulative += weights[i];
    drawn = {static_cast<float>(row[first + i]), static_cast<int32_t>(first + i)};
  }
  return drawn.id < 0 ? summary.best[0] : drawn;
}

// The most likely tokens that the truncations leave, in falling order.
template <typename T>
std::vector<Candidate> Truncated(const T* row, const SampleSettings& settings, const RowSummary& summary) {
  const auto less = [](const Candidate& a, const Candidate& b) { return MoreLikely(b, a); };
  const double floor = settings.min_p * (1 - 1e-6);  // times as likely as the first, with room for rounding
  std::vector<Candidate> heap;
  for (int64_t i = 0; i < settings.vocab_size; ++i) {
    const auto logit = static_cast<float>(row[i]);
    if (logit > -kInfinity) heap.push_back({logit, static_cast<int32_t>(i)});
  }
  std::make_heap(heap.begin(), heap.end(), less);
  const size_t limit = settings.top_k > 0 ? std::min<size_t>(settings.top_k, heap.size()) : heap.size();
  std::vector<Candidate> kept;
  double mass = 0;
  while (kept.size() < limit) {
    // Without top_k the mass that top_p is a share of is known beforehand, and few are taken off the heap.
    if (settings.top_k == 0 && !kept.empty()) {
      if (settings.top_p < 1 && mass >= settings.top_p * summary.total) break;
      if (settings.min_p > 0 && summary.Weight(heap.front().value) < floor) break;
    }
    std::pop_heap(heap.begin(), heap.end(), less);
    kept.push_back(heap.back());
    heap.pop_back();
    mass += summary.Weight(kept.back().value);
  }
  double cumulative = 0;
  size_t count = 0;
  while (count < kept.size()) {
    if (count > 0 && settings.top_p < 1 && settings.top_k > 0 && cumulative >= settings.top_p * mass) break;
    if (count > 0 && settings.min_p > 0 && summary.Weight(kept[count].value) < floor) break;
    cumulative += summary.Weight(kept[count++].value);
  }
  kept.resize(count);
  return kept;
}

Candidate DrawFrom(const std::vector<Candidate>& candidates, const RowSummary& summary, double uniform) {
  double total = 0;
  for (const Candidate& c : candidates) total += summary.Weight(c.value);
  double cumulative = 0;
  for (const Candidate& c : candidates) {
    cumulative += summary.Weight(c.value);
    if (cumulative > uniform * total) return c;
  }
  return candidates.back();
}

void WriteSupport(const RowSummary& summary, Candidate drawn, const SampleSettings& settings, int32_t* ids,
                  float* logprobs) {
  const int64_t columns = settings.columns();
  int64_t column = 0;
  auto add = [&](Candidate c) {
    ids[column] = c.id;
    logprobs[column++] = static_cast<float>(summary.LogProb(c.value));
  };
  add(drawn);
  for (const Candidate& c : summary.best) {
    if (c.id != drawn.id) add(c);
  }
  for (; column < columns; ++column) {
    ids[column] = -1;
    logprobs[column] = -kInfinity;
  }
}

void WriteFailure(int64_t draw, const SampleSettings& settings, const SampleResults& out) {
  out.finite[draw] = 0;
  out.tokens[draw] = -1;
  out.logprobs[draw] = std::numeric_limits<float>::quiet_NaN();
  const int64_t columns = settings.columns();
  std::fill_n(out.support_ids + draw * columns, columns, -1);
  std::fill_n(out.support_logprobs + draw * columns, columns, -kInfinity);
}

// All draws from one row.
template <typename T>
void SampleRow(const T* row, const SampleDraw* draws, int64_t begin, int64_t end,
               const SampleSettings& settings, const SampleResults& out) {
  const SampleKernels& kernels = AUGUR_LANES_CHOICE(kSampling);
  const RowSummary summary = Summarize(kernels, row, settings);
  std::vector<Candidate> candidates;
  const bool greedy = settings.temperature == 0;
  if (summary.finite && !greedy && settings.truncates()) candidates = Truncated(row, settings, summary);
  for (int64_t d = begin; d < end; ++d) {
    if (!summary.finite) {
      WriteFailure(d, settings, out);
      continue;
    }
    Candidate drawn = summary.best[0];
    if (!greedy) {
      const double uniform = UniformOf(draws[d]);
      drawn = candidates.empty() ? DrawFromAll(kernels, row, settings, summary, uniform)
                                 : DrawFrom(candidates, summary, uniform);
    }
    out.finite[d] = 1;
    out.tokens[d] = drawn.id;
    out.logprobs[d] = static_cast<float>(summary.LogProb(drawn.value));
    const int64_t columns = settings.columns();
    if (columns > 0) {
      WriteSupport(summary, drawn, settings, out.support_ids + d * columns,
                   out.support_logprobs + d * columns);
    }
  }
}

}  // namespace

template <typename T>
void SampleSupportCpu(const T* logits, const SampleDraw* draws, int64_t count, const SampleSettings& settings,
                      const SampleResults& out) {
  std::vector<int64_t> begins;  // of the runs of draws from the same row
  for (int64_t d = 0; d < count; ++d) {
    if (d == 0 || draws[d].row != draws[d - 1].row) begins.push_back(d);
  }
  const auto runs = static_cast<int64_t>(begins.size());
  begins.push_back(count);
  ParallelFor(runs, WorthThreads(runs * settings.vocab_size), [&](int64_t r) {
    SampleRow(logits + draws[begins[r]].row * settings.stride, draws, begins[r], begins[r + 1], settings,
              out);
  });
}

template void SampleSupportCpu(const float*, const SampleDraw*, int64_t, const SampleSettings&,
                               const SampleResults&);
template void SampleSupportCpu(const BFloat16*, const SampleDraw*, int64_t, const SampleSettings&,
                               const SampleResults&);

}  // namespace augur
