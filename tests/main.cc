// Runs the tests of one room.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int code = RUN_ALL_TESTS();
  std::fflush(nullptr);
  // Not return: torch's libraries do not all survive the destructors of their statics at the end of a
  // program.
  std::_Exit(code);
}
