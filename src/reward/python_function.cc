#include "reward/python_function.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/cores.h"
#include "base/error.h"
#include "base/python.h"

namespace augur {
namespace {

constexpr const char* kKey = "reward.python";
constexpr std::string_view kPassed = "function ";  // opens the name of a function that Python passed
constexpr int64_t kMostByDefault = 8;

int reward_server = -1;

struct ServerRequest {
  char kind;
  int32_t pid;
} __attribute__((packed));

void AskServer(char kind, pid_t pid) {
  const ServerRequest request{kind, pid};
  if (::send(reward_server, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) {
    throw Error(kKey, "the process that forks reward workers is gone", "call Augur again");
  }
}

ChildProcess StartFromServer() {
  AskServer('s', 0);
  int32_t pid = -1;
  iovec part{&pid, sizeof pid};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  const ssize_t got = ::recvmsg(reward_server, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = got == sizeof pid ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
    throw Error(kKey, "no reward worker could be forked", "free memory, or set reward.workers lower");
  }
  ChildProcess child{.pid = pid};
  std::memcpy(&child.fd, CMSG_DATA(header), sizeof child.fd);
  return child;
}

std::string EndFromServer(const ChildProcess& child) {
  AskServer('e', child.pid);
  ::close(child.fd);
  int32_t status = 0;
  [[maybe_unused]] const ssize_t got = ::recv(reward_server, &status, sizeof status, 0);
  return ExitText(status);
}

RewardWorkerOptions FileOptions(const PythonReward& reward) {
  const std::string file = *FileOfFunction(reward.function), name = reward.function.substr(file.size() + 1);
  if (!std::filesystem::is_regular_file(file)) {
    throw Error(reward.key, fmt::format("there is no file {}", file),
                "name the file that defines the function");
  }
  const std::vector<std::string> command =
      PythonScript("_reward_worker.py", {file, name}, reward.key, reward.interpreter);
  RewardWorkerOptions options;
  // One thread, since generation needs the cores, and the same order of sets whenever it runs.
  options.start = [command] {
    return StartChild(command, std::vector<std::string>{"OMP_NUM_THREADS=1", "PYTHONHASHSEED=0"},
                      "reward.interpreter");
  };
  options.end = [](const ChildProcess& child) { return ExitText(EndChild(child)); };
  return options;
}

}  // namespace

void CheckPythonFunction(std::string_view function, std::string_view where) {
  if (function.starts_with(kPassed)) return;
  const size_t colon = function.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == function.size()) {
    throw Error(where, fmt::format("'{}' names no function", function), "write FILE.py:FUNCTION");
  }
}

std::optional<std::string> FileOfFunction(std::string_view function) {
  if (function.starts_with(kPassed)) return std::nullopt;
  return std::string(function.substr(0, function.rfind(':')));
}

int64_t CountRewardWorkers(int64_t workers) {
  return workers > 0 ? workers : std::min(CoresPerProcess(), kMostByDefault);
}

std::unique_ptr<RewardWorkers> StartRewardWorkers(const PythonReward& reward) {
  CheckPythonFunction(reward.function, reward.key);
  const bool passed = reward.function.starts_with(kPassed);
  if (passed && reward_server < 0) {
    throw Error(reward.key, fmt::format("'{}' was passed to augur.train", reward.function),
                "pass it again (reward=...), or name a file: FILE.py:FUNCTION");
  }
  RewardWorkerOptions options = passed ? RewardWorkerOptions{} : FileOptions(reward);
  if (passed) {
    options.start = StartFromServer;
    options.end = EndFromServer;
  }
  options.name = reward.function;
  options.key = reward.key;
  options.workers = CountRewardWorkers(reward.workers);
  options.timeout_s = reward.timeout_s;
  return std::make_unique<RewardWorkers>(std::move(options));
}

void SetRewardServer(int fd) { reward_server = fd; }

}  // namespace augur
