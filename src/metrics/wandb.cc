#include "metrics/wandb.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/python.h"
#include "base/stop_signals.h"

namespace augur {
namespace {

constexpr const char* kWandbKey = "log.wandb";
constexpr int kFinishMilliseconds = 60'000;

// One line, or what there is of it where the process ends first. Throws Stopped on a signal.
std::string ReadLine(int fd) {
  constexpr int kMilliseconds = 100;
  std::string line;
  pollfd next{.fd = fd, .events = POLLIN, .revents = 0};
  for (char c = 0; c != '\n';) {
    if (StopSignals::Received() != nullptr) throw Stopped();
    if (::poll(&next, 1, kMilliseconds) <= 0) continue;
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
  ::shutdown(child_.fd, SHUT_WR);
  pollfd ended{
      .fd = child_.fd, .events = POLLIN, .revents = 0};  // it writes nothing more, so this is its end
  if (begun_) ::poll(&ended, 1, kFinishMilliseconds);
  EndChild(child_);
}

void WandbWriter::Write(int64_t step, const Metrics& metrics) { Send({{"step", step}, {"data", metrics}}); }

void WandbWriter::WriteReport(const std::filesystem::path& page) { Send({{"report", page.string()}}); }

// A process that has ended is not the run's business: its metrics are in the run directory, too.
void WandbWriter::Send(const Json& message) {
  const std::string line = message.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t now = ::send(child_.fd, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return;
    sent += static_cast<size_t>(now);
  }
}

}  // namespace augur
