// The program `augur` on its own; everything in it is in the shared library that Python loads.
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "cli/program.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit fails, and is reported, like any other
  augur_set_python(AUGUR_PYTHON, AUGUR_PACKAGE);
  const int code = augur_main(argc, argv, nullptr);
  std::fflush(nullptr);
  // Not return: torch's libraries do not all survive the destructors of their statics at the end of a
  // program.
  std::_Exit(code);
}
