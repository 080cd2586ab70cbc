// Responses on standard output as they arrive, in the order of their prompts: the first that is not finished
// is written token by token, the later ones wait.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rollout/rollout.h"
#include "text/tokenizer.h"

namespace augur {

class ResponsePrinter {
 public:
  // `tokenizer` must outlive this object. With more than one response each has a line above it.
  ResponsePrinter(const Tokenizer& tokenizer, size_t requests, int64_t samples);

  // One more token of a response. `last` where it is known to be its last.
  void Add(size_t request, int64_t sample, int32_t token, bool last);
  // Writes what is still waiting.
  void Finish();

 private:
  struct Response {
    IncrementalDecoder decoder;
    std::string waiting;  // decoded and not yet written
    bool finished = false;
  };
  void Open();
  void Advance();

  int64_t samples_;
  std::vector<Response> responses_;
  size_t current_ = 0;
};

}  // namespace augur
