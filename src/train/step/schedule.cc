#include "train/step/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace augur {

double LearningRate(const ScheduleOptions& o, int64_t index) {
  if (index < o.warmup) return o.lr * static_cast<double>(index + 1) / static_cast<double>(o.warmup);
  if (o.kind == Schedule::kConstant || o.total <= o.warmup) return o.lr;
  const double done =
      std::min(1.0, static_cast<double>(index - o.warmup) / static_cast<double>(o.total - o.warmup));
  const double left = 0.5 * (1 + std::cos(std::numbers::pi * done));
  return o.lr * (o.final_share + (1 - o.final_share) * left);
}

}  // namespace augur
