// The program `augur` on its own; everything in it is in the shared library that Python loads.
#include <dlfcn.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cli/program.h"

namespace {

template <typename Function>
Function* Find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "augur: %s\n", dlerror());
    std::exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

// Loading takes most of a second. A command that answers a signal in order gets to know of one that came
// meanwhile (StopSignals).
void HoldStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit fails, and is reported, like any other
  // OpenMP's threads wait for each other by spinning, milliseconds long, which on cores that others use costs
  // a step two to three times its time; tens of microseconds span the gaps between parallel loops. ARM's
  // yield takes a few cycles where x86's pause takes a hundred. It reads this when it is loaded, so the
  // library comes after.
#if defined(__aarch64__)
  constexpr const char* kSpins = "30000";
#else
  constexpr const char* kSpins = "1000";
#endif
  const bool spins = std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr;
  if (spins) setenv("GOMP_SPINCOUNT", kSpins, 1);
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "train" || command == "sft") HoldStopSignals();
  void* library = dlopen("libaugur_torch.so", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "augur: %s\n", dlerror());
    return 1;
  }
  if (spins) unsetenv("GOMP_SPINCOUNT");  // not for what this starts
  Find<decltype(augur_set_python)>(library, "augur_set_python")(AUGUR_PYTHON, AUGUR_PACKAGE);
  const int code = Find<decltype(augur_main)>(library, "augur_main")(argc, argv, nullptr);
  std::fflush(nullptr);
  // Not return: torch's libraries do not all survive the destructors of their statics at the end of a
  // program.
  std::_Exit(code);
}
