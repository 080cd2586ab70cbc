#include "metrics/wandb.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/python.h"
#include "base/stop_signals.h"
#include "base/tell.h"

namespace augur {
namespace {

constexpr const char* kWandbKey = "log.wandb";
constexpr double kFinishSeconds = 60, kFinishSecondsAfterSignal = 10;
constexpr int kPollMilliseconds = 100;
constexpr size_t kMostWaiting = 1 << 20;  // bytes

// One line, or what there is of it where the process ends first. Throws Stopped on a signal.
std::string ReadLine(int fd) {
  std::string line;
  pollfd next{.fd = fd, .events = POLLIN, .revents = 0};
  for (char c = 0; c != '\n';) {
    if (StopSignals::Received() != nullptr) throw Stopped();
    if (::poll(&next, 1, kPollMilliseconds) <= 0) continue;
    if (::read(fd, &c, 1) != 1) break;
    if (c != '\n') line += c;
  }
  return line;
}

}  // namespace

WandbWriter::WandbWriter(const std::string& project, const std::filesystem::path& run)
    : child_(StartChild(PythonScript("_wandb.py", {project, run.string()}, kWandbKey), {}, kWandbKey)) {
  try {
    AwaitReady();
  } catch (...) {
    EndChild(child_);
    throw;
  }
}

void WandbWriter::AwaitReady() {
  const std::string line = ReadLine(child_.fd);
  const Json answer = line.empty() ? Json::object() : ParseJson(line, kWandbKey);
  if (answer.contains("ready")) return;
  throw Error(kWandbKey, answer.value("fault", "its process ended early"),
              answer.value("remedy", "run wandb login or wandb offline, or remove log.wandb"));
}

void WandbWriter::Begin(const std::string& config_yaml, bool anew) {
  Send({{"config", config_yaml}, {"anew", anew}});
  AwaitReady();
  begun_ = true;
}

WandbWriter::~WandbWriter() {
  if (begun_) Finish();
  EndChild(child_);
}

void WandbWriter::Finish() {
  const auto start = Clock::now();
  pollfd next{.fd = child_.fd, .events = POLLIN, .revents = 0};
  bool ended = gone_;  // it writes nothing more, so what comes is its end
  for (bool all_sent = false; !ended;) {
    const double limit = StopSignals::Received() != nullptr ? kFinishSecondsAfterSignal : kFinishSeconds;
    if (SecondsSince(start) > limit) break;
    Flush();
    if (waiting_.empty() && !std::exchange(all_sent, true)) ::shutdown(child_.fd, SHUT_WR);
    ended = ::poll(&next, 1, kPollMilliseconds) > 0;
  }
  const int64_t unsent = dropped_ + std::ranges::count(waiting_, '\n');
  if (unsent > 0) {
    Tell("augur: warning: {}: {} messages did not reach W&B; metrics.jsonl has all metrics\n", kWandbKey,
         unsent);
  } else if (!ended) {
    Tell("augur: warning: {}: W&B did not finish within {:.0f} s; `wandb sync` sends what is missing\n",
         kWandbKey, SecondsSince(start));
  }
}

void WandbWriter::Write(int64_t step, const Metrics& metrics) { Send({{"step", step}, {"data", metrics}}); }

void WandbWriter::WriteReport(const std::filesystem::path& page) { Send({{"report", page.string()}}); }

void WandbWriter::Send(const Json& message) {
  const std::string line = message.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  Flush();
  if (!gone_ && waiting_.size() + line.size() <= kMostWaiting) {
    waiting_ += line;
    return Flush();
  }
  if (dropped_++ == 0 && !gone_) {
    Tell(
        "augur: warning: {}: W&B takes no metrics; until it does, they are dropped there and counted; "
        "metrics.jsonl has them\n",
        kWandbKey);
  }
}

void WandbWriter::Flush() {
  while (!waiting_.empty() && !gone_) {
    const ssize_t sent = ::send(child_.fd, waiting_.data(), waiting_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) waiting_.erase(0, static_cast<size_t>(sent));
    if (sent >= 0 || errno == EINTR) continue;
    if (errno == EAGAIN) return;
    gone_ = true;
    Tell("augur: warning: {}: the process that sends to W&B has ended; metrics.jsonl has all metrics\n",
         kWandbKey);
  }
}

}  // namespace augur
