#include "rollout/part_timer.h"

#include <algorithm>
#include <string_view>

#include "base/clock.h"

namespace augur {
namespace {

class CpuPartTimer : public PartTimer {
 public:
  void BeginStep(int64_t) override {
    open_ = true;
    last_ = Clock::now();
  }
  void Mark(const char* part) override {
    if (!open_) return;
    const auto now = Clock::now();
    AddPart(part, std::chrono::duration<double>(now - last_).count(), &sums_);
    last_ = now;
  }
  void EndStep() override {
    open_ = false;
    ++steps_;
  }
  std::vector<PartTime> Times() override {
    std::vector<PartTime> means = sums_;
    for (PartTime& part : means) {
      part.calls /= std::max<int64_t>(steps_, 1);
      part.seconds /= static_cast<double>(std::max<int64_t>(steps_, 1));
    }
    return means;
  }

 private:
  bool open_ = false;
  Clock::time_point last_;
  int64_t steps_ = 0;
  std::vector<PartTime> sums_;
};

}  // namespace

std::unique_ptr<PartTimer> MakeCpuPartTimer() { return std::make_unique<CpuPartTimer>(); }

void AddPart(const char* part, double seconds, std::vector<PartTime>* parts) {
  auto found = std::ranges::find(*parts, std::string_view(part), &PartTime::part);
  if (found == parts->end()) found = parts->insert(parts->end(), PartTime{part, 0, 0});
  ++found->calls;
  found->seconds += seconds;
}

}  // namespace augur
