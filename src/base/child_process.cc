#include "base/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.h"

extern "C" char** environ;

namespace augur {
namespace {

constexpr int kChildSocket = 3;

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(std::span<const std::string> additions) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  for (const std::string& addition : additions) {
    const std::string name = addition.substr(0, addition.find('='));
    if (std::getenv(name.c_str()) == nullptr) all.push_back(addition);
  }
  return all;
}

// What the child's descriptors are, and that no signal is blocked or ignored in it.
class SpawnSettings {
 public:
  explicit SpawnSettings(int socket) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, socket, kChildSocket);
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

ChildProcess StartChild(std::span<const std::string> arguments, std::span<const std::string> environment,
                        std::string_view where) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(where, fmt::format("cannot make a socket: {}", std::strerror(errno)), "close other programs");
  }
  const SpawnSettings settings(ends[1]);
  const std::vector<std::string> words(arguments.begin(), arguments.end());
  const std::vector<std::string> variables = Environment(environment);
  ChildProcess child{.fd = ends[0]};
  const int fault = ::posix_spawnp(&child.pid, words[0].c_str(), settings.actions(), settings.attributes(),
                                   Pointers(words).data(), Pointers(variables).data());
  ::close(ends[1]);
  if (fault != 0) {
    ::close(ends[0]);
    throw Error(where, fmt::format("'{}' cannot be started: {}", words[0], std::strerror(fault)),
                "check that it exists and may be run");
  }
  return child;
}

int EndChild(const ChildProcess& child) {
  ::kill(-child.pid, SIGKILL);
  ::close(child.fd);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

std::string ExitText(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace augur
