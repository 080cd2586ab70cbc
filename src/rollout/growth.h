// How long responses become, and the memory they will take: what admission counts on.
#pragma once

#include <cstdint>
#include <vector>

namespace augur {

// Learns from the responses of a batch how long they last. A response of up to `limit` tokens passes stages
// of equal length; the share that ends in a stage is counted over all that came there. Before there are any,
// all lengths are taken to be equally likely.
class ResponseGrowth {
 public:
  ResponseGrowth(int64_t limit, int64_t page_tokens);

  // A response has `tokens` tokens now; called with every token.
  void Grown(int64_t tokens) {
    if ((tokens - 1) % stage_tokens_ == 0) ++came_[StageOf(tokens)];
  }
  // A response ended with `tokens` tokens, at least 1.
  void Ended(int64_t tokens) { ++ended_[StageOf(tokens)]; }

  int64_t stages() const { return static_cast<int64_t>(came_.size()); }
  // The stage of a response that has `tokens` tokens.
  int64_t StageOf(int64_t tokens) const;
  // By stage, how many of a response's first pages are taken at its end.
  double PagesAt(int64_t stage) const;
  // By stage, the share of responses that come there.
  std::vector<double> Survival() const;

 private:
  int64_t stage_tokens_, page_tokens_;
  std::vector<int64_t> came_, ended_;
};

// The most pages that responses are expected to take at one time, if all go on together from now.
class PageForecast {
 public:
  explicit PageForecast(const ResponseGrowth& growth);

  // One more response, which has `tokens` tokens.
  void Add(int64_t tokens);
  double most() const;

 private:
  const ResponseGrowth& growth_;
  const std::vector<double> survival_;
  std::vector<double> pages_;  // expected so many stages from now
};

}  // namespace augur
