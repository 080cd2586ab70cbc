#include "cli/response_printer.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "base/tell.h"

namespace augur {
namespace {

void Write(std::string_view response) {
  const std::string text = ForStdout(response);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

ResponsePrinter::ResponsePrinter(const Tokenizer& tokenizer, size_t requests, int64_t samples)
    : samples_(samples) {
  responses_.reserve(requests * static_cast<size_t>(samples));
  for (size_t i = 0; i < requests * static_cast<size_t>(samples); ++i) {
    responses_.push_back({IncrementalDecoder(tokenizer, /*skip_special=*/true), "", false});
  }
  Open();
}

void ResponsePrinter::Open() {
  if (current_ == responses_.size() || responses_.size() == 1) return;
  const auto index = static_cast<int64_t>(current_);
  std::string title = fmt::format("=== prompt {}", index / samples_ + 1);
  if (samples_ > 1) title += fmt::format(", sample {}", index % samples_ + 1);
  Write(title + "\n");
}

void ResponsePrinter::Add(size_t request, int64_t sample, int32_t token, bool last) {
  const size_t index = request * static_cast<size_t>(samples_) + static_cast<size_t>(sample);
  Response& response = responses_[index];
  response.waiting += response.decoder.Add(token);
  response.finished = last;
  if (index != current_) return;
  Write(std::exchange(response.waiting, ""));
  if (last) Advance();
}

// Writes the current response to its end, and those after it that are finished, up to one that is not.
void ResponsePrinter::Advance() {
  while (current_ < responses_.size()) {
    Response& response = responses_[current_];
    Write(std::exchange(response.waiting, ""));
    if (!response.finished) return;
    Write(response.decoder.Finish() + "\n");
    ++current_;
    Open();
  }
}

void ResponsePrinter::Finish() {
  for (Response& response : responses_) response.finished = true;
  Advance();
}

}  // namespace augur
