// Only the first rank prints.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace augur {

// While it lives, what this process writes to standard output and standard error goes nowhere.
class Silence {
 public:
  Silence() {
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < 2; ++i) {
      std::fflush(i == 0 ? stdout : stderr);
      kept_[i] = ::dup(i + 1);
      ::dup2(nowhere, i + 1);
    }
    ::close(nowhere);
  }
  ~Silence() {
    for (int i = 0; i < 2; ++i) {
      std::fflush(i == 0 ? stdout : stderr);
      ::dup2(kept_[i], i + 1);
      ::close(kept_[i]);
    }
  }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  int kept_[2];
};

}  // namespace augur
