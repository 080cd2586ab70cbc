#include "cli/processes.h"

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "base/tell.h"
#include "cli/exit_code.h"

extern char** environ;

namespace augur {
namespace {

std::vector<std::string> OwnCommandLine() {
  const std::string text = ReadFile("/proc/self/cmdline");
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

pid_t Spawn(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int fault = ::posix_spawnp(&pid, argv[0], nullptr, nullptr, argv.data(), environ);
  if (fault != 0) throw Error(words[0], std::strerror(fault), "start it by a path that can be run again");
  return pid;
}

class Copies {
 public:
  Copies(int count, const std::vector<std::string>& words) {
    for (int i = 0; i < count; ++i) running_.push_back(Spawn(words));
  }
  ~Copies() {
    Stop();
    while (!running_.empty()) Collect(0);
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  bool Running() const { return !running_.empty(); }
  void Stop() {
    for (const pid_t pid : running_) ::kill(pid, SIGTERM);
  }
  // Takes note of those that have ended; waits for one unless `options` is WNOHANG.
  void Collect(int options) {
    for (size_t i = 0; i < running_.size();) {
      int status = 0;
      if (::waitpid(running_[i], &status, options) == 0) {
        ++i;
        continue;
      }
      if (WIFSIGNALED(status)) killed_ = WTERMSIG(status);
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0) exit_code_ = WEXITSTATUS(status);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  int exit_code() const { return exit_code_; }  // of one that failed, or 0
  int killed() const { return killed_; }        // the signal, or 0

 private:
  std::vector<pid_t> running_;
  int exit_code_ = 0, killed_ = 0;
};

}  // namespace

CopiesEnd RunCopies(int count, const std::string& flag, const std::function<void()>& waiting) {
  using namespace std::chrono_literals;
  const StopSignals signals;
  std::vector<std::string> words = OwnCommandLine();
  words.insert(std::ranges::find(words, "--"), flag);  // what follows that is no flag
  Copies copies(count, words);
  bool stopping = false;
  while (copies.Running()) {
    copies.Collect(WNOHANG);
    if (!stopping && (StopSignals::Received() != nullptr || copies.exit_code() != 0)) {
      stopping = true;
      copies.Stop();
    }
    waiting();
    std::this_thread::sleep_for(500ms);
  }
  if (copies.exit_code() != 0) throw ExitCode{copies.exit_code()};  // it has said why
  if (StopSignals::Received() != nullptr) return CopiesEnd::kStopped;
  if (copies.killed() == 0) return CopiesEnd::kDone;
  Tell(
      "augur: warning: a process was ended by signal {} ({}); where memory is short, --workers takes fewer\n",
      copies.killed(), ::strsignal(copies.killed()));
  return CopiesEnd::kKilled;
}

void EndWithParent() { ::prctl(PR_SET_PDEATHSIG, SIGTERM); }

}  // namespace augur
