// The learning rate of each update.
#pragma once

#include <cstdint>

#include "config/options.h"

namespace augur {

struct ScheduleOptions {
  Schedule kind = Schedule::kConstant;
  double lr = 1e-6;
  int64_t warmup = 0;      // updates over which the rate rises from lr / warmup to lr
  int64_t total = 0;       // updates of the whole run; kConstant does not read it
  double final_share = 0;  // the rate at the end, as a share of lr
};

// The rate of update `index`, from 0: (index + 1) / warmup of lr while warming up, then lr, or along half a
// cosine from lr at the end of the warm-up down to final_share of it at `total`.
double LearningRate(const ScheduleOptions& options, int64_t index);

}  // namespace augur
