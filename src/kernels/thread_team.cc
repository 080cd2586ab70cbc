#include "kernels/thread_team.h"

#include <fcntl.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace augur {
namespace {

using Clock = std::chrono::steady_clock;

// A thread looks this long for the next loop, or for the end of one, before it sleeps and leaves its core to
// others: longer than any pause within a step, shorter than the scheduler's time slices.
constexpr auto kPatience = std::chrono::microseconds(200);
// A thread's share of a loop falls into at most so many pieces.
constexpr int64_t kPieces = 64;
// Whose items a thread takes when its own are done: more to look at costs more than they could give.
constexpr int kVictims = 3;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks until ready() is true, but not longer than kPatience. Whether it was.
template <typename Ready>
bool LookFor(const Ready& ready) {
  Clock::time_point end{};
  for (int i = 1; !ready(); ++i) {
    Pause();
    if (i % 64 != 0) continue;
    const Clock::time_point now = Clock::now();
    if (end == Clock::time_point{}) end = now + kPatience;
    if (now >= end) return false;
  }
  return true;
}

// How long a thread has been ready and not running, in seconds; negative where that is not known.
double KeptOffSeconds(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/schedstat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  char text[128] = {};
  const ssize_t size = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  if (size <= 0) return -1;
  char* end = nullptr;
  std::strtoull(text, &end, 10);  // the time on its core
  return static_cast<double>(std::strtoull(end, nullptr, 10)) * 1e-9;
}

class KeptOffClock {
 public:
  double SinceLastLook(pid_t thread) {
    const double now = KeptOffSeconds(thread), since = before_ >= 0 && now >= 0 ? now - before_ : 0;
    before_ = now;
    return since;
  }

 private:
  double before_ = -1;
};

// Threads that OpenMP binds to a core each hand that core down to those they start; these may run on all.
void UnbindThisThread() {
  if (omp_get_proc_bind() == omp_proc_bind_false) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> ids(static_cast<size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, ids.data());
    for (const int id : ids) CPU_SET(id, &cores);
  }
  if (CPU_COUNT(&cores) > 0) sched_setaffinity(0, sizeof(cores), &cores);
}

// The pieces of a loop that one thread begins with. The loop's number stands next to the next piece, so that
// nobody has to reset it.
class alignas(64) Pieces {
 public:
  // The next of begin .. end - 1; -1: none is left.
  int64_t Take(uint64_t loop, int64_t begin, int64_t end) {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    while (true) {
      const int64_t next = seen >> kBits == loop ? static_cast<int64_t>(seen & kMask) : begin;
      if (next >= end) return -1;
      const uint64_t taken = loop << kBits | static_cast<uint64_t>(next + 1);
      if (word_.compare_exchange_weak(seen, taken, std::memory_order_relaxed)) return next;
    }
  }

 private:
  static constexpr int kBits = 20;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  std::atomic<uint64_t> word_{0};
};

enum State : uint32_t { kIdle, kCalled, kInside, kStop };

struct alignas(64) Helper {
  std::atomic<uint32_t> state{kIdle};
  std::atomic<bool> asleep{false};
  std::atomic<pid_t> id{0};
  KeptOffClock kept_off;
  std::thread thread;
};

thread_local bool in_loop = false;

// One thread, the first, that calls Run, and those that help it.
class Team {
 public:
  Team() : process_(::getpid()) {}
  ~Team() {
    if (process_ != ::getpid()) ForgetHelpers();
    for (const auto& helper : helpers_) {
      Tell(helper.get(), kStop);
      helper->thread.join();
    }
  }

  void Run(const SharedLoop& loop, int threads) {
    if (process_ != ::getpid()) ForgetHelpers();
    while (helpers_.size() + 1 < static_cast<size_t>(threads) && !no_more_) Start();
    if (helpers_.size() >= shares_size_) GrowShares();
    const size_t others = std::min(helpers_.size(), static_cast<size_t>(threads) - 1);
    threads = static_cast<int>(others) + 1;
    loop_ = &loop;
    ++number_;
    piece_ = (loop.count + kPieces * threads - 1) / (kPieces * threads);
    pieces_ = (loop.count + piece_ - 1) / piece_;
    threads_ = threads;
    for (size_t i = 0; i < others; ++i) Tell(helpers_[i].get(), kCalled);
    Work(0);
    in_loop = true;
    for (size_t i = 0; i < others; ++i) EndWithout(helpers_[i].get(), static_cast<int>(i) + 1);
    in_loop = false;
    for (size_t i = 0; i < others; ++i) WaitFor(helpers_[i].get());
  }

  double KeptOffSinceLastLook() {
    double sum = kept_off_.SinceLastLook(::gettid());
    for (const auto& helper : helpers_) sum += helper->kept_off.SinceLastLook(helper->id);
    return sum;
  }

 private:
  void Start() {
    Helper* helper = helpers_.emplace_back(std::make_unique<Helper>()).get();
    try {
      helper->thread = std::thread([this, helper, index = static_cast<int>(helpers_.size())] {
        UnbindThisThread();
        helper->id = ::gettid();
        Help(helper, index);
      });
    } catch (const std::system_error&) {
      helpers_.pop_back();
      no_more_ = true;
    }
  }

  void GrowShares() {
    shares_size_ = 2 * helpers_.size() + 1;
    shares_ = std::make_unique<Pieces[]>(shares_size_);
  }

  // In a fork, which has none of the threads.
  void ForgetHelpers() {
    for (auto& helper : helpers_) static_cast<void>(helper.release());
    helpers_.clear();
    no_more_ = false;
    process_ = ::getpid();
  }

  static void Tell(Helper* helper, State state) {
    helper->state.store(state);
    if (helper->asleep.load()) helper->state.notify_one();
  }

  // Ends the part in the loop of a helper that has not come yet, and does what was left for it.
  void EndWithout(Helper* helper, int thread) {
    uint32_t called = kCalled;
    if (helper->state.load(std::memory_order_acquire) == kCalled &&
        helper->state.compare_exchange_strong(called, kIdle)) {
      RunPieces(thread);
    }
  }

  void WaitFor(Helper* helper) {
    const auto idle = [&] { return helper->state.load(std::memory_order_acquire) == kIdle; };
    if (LookFor(idle)) return;
    waiting_ = true;
    while (!idle()) helper->state.wait(kInside);
    waiting_ = false;
  }

  // What is left of a thread's share.
  void RunPieces(int thread) {
    const int64_t begin = pieces_ * thread / threads_, end = pieces_ * (thread + 1) / threads_;
    for (int64_t p; (p = shares_[thread].Take(number_, begin, end)) >= 0;) {
      loop_->run(loop_->work, p * piece_, std::min(loop_->count, (p + 1) * piece_));
    }
  }

  void Work(int thread) {
    in_loop = true;
    for (int v = 0; v <= std::min(kVictims, threads_ - 1); ++v) RunPieces((thread + v) % threads_);
    in_loop = false;
  }

  void Help(Helper* helper, int index) {
    while (true) {
      const auto called = [&] {
        const uint32_t state = helper->state.load(std::memory_order_acquire);
        return state == kCalled || state == kStop;
      };
      if (!LookFor(called)) {
        helper->asleep = true;
        while (!called()) helper->state.wait(kIdle);
        helper->asleep = false;
      }
      uint32_t state = kCalled;
      if (helper->state.compare_exchange_strong(state, kInside)) {
        Work(index);
        helper->state.store(kIdle);
        if (waiting_.load()) helper->state.notify_one();
      } else if (state == kStop) {
        return;
      }
    }
  }

  pid_t process_;
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::unique_ptr<Pieces[]> shares_;
  size_t shares_size_ = 0;
  bool no_more_ = false;  // threads of the system
  KeptOffClock kept_off_;
  std::atomic<bool> waiting_{false};  // the first thread sleeps until a helper is done
  // Of the loop in progress.
  const SharedLoop* loop_ = nullptr;
  uint64_t number_ = 0;
  int64_t piece_ = 1, pieces_ = 0;  // items of a piece, pieces in all
  int threads_ = 1;
};

Team& ThisThreadsTeam() {
  thread_local Team team;
  return team;
}

}  // namespace

bool InParallel() { return in_loop || omp_in_parallel() != 0; }

int TeamThreads() { return InParallel() ? 1 : omp_get_max_threads(); }

void RunShared(const SharedLoop& loop, int threads) noexcept { ThisThreadsTeam().Run(loop, threads); }

double KeptOffSinceLastLook() { return ThisThreadsTeam().KeptOffSinceLastLook(); }

}  // namespace augur
