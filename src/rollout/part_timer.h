// Where the time of a decode step goes: what `augur bench rollout --parts` shows. A backend that is given a
// timer tells it where each part of a step ends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace augur {

// One part of a decode step, over all layers.
struct PartTime {
  std::string part;
  int64_t calls = 0;
  double seconds = 0;
};

class PartTimer {
 public:
  virtual ~PartTimer() = default;

  virtual void BeginStep(int64_t sequences) = 0;
  // What was done, or queued on the GPU, since the last mark was this part. Ignored outside a step.
  virtual void Mark(const char* part) = 0;
  virtual void EndStep() = 0;

  // By part, in the order of the step. On a CPU the mean of the steps; on a GPU the last step of the most
  // sequences, whose marks are events within its graph.
  virtual std::vector<PartTime> Times() = 0;
};

std::unique_ptr<PartTimer> MakeCpuPartTimer();
// Says so where CUDA is not compiled in.
std::unique_ptr<PartTimer> MakeCudaPartTimer();

// For those who may have been given none.
inline void MarkPart(PartTimer* timer, const char* part) {
  if (timer != nullptr) timer->Mark(part);
}

// Adds to the part of this name, which is made at the end where there is none.
void AddPart(const char* part, double seconds, std::vector<PartTime>* parts);

}  // namespace augur
