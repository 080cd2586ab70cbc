// TensorBoard event files, as the `tensorboard` package reads them: TFRecord framing around a few protobuf
// fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "metrics/step_metrics.h"

namespace augur {

inline constexpr const char* kTensorBoardDirectory = "tensorboard";  // in the run directory

// One event file per run, which a resumed run goes on with.
class TensorBoardWriter {
 public:
  // Opens or makes the event file in `directory`. Events after `last_step`, and a last one that was cut off,
  // are removed, so that a resumed run shows each step once.
  TensorBoardWriter(const std::filesystem::path& directory, int64_t last_step);

  // Appends the figures as scalars; those that are not finite stay out.
  void Write(int64_t step, const Metrics& metrics);

 private:
  std::filesystem::path path_;
  size_t size_ = 0;  // of the file, up to the last whole event
};

}  // namespace augur
