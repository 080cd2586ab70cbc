// How a command ends when its result is written and yet something was wrong.
#pragma once

namespace augur {

inline constexpr int kUserError = 2;
inline constexpr int kInternalError = 70;  // EX_SOFTWARE: our fault, not the user's
inline constexpr int kInterrupted = 130;   // what shells report for SIGINT

// Thrown by a command that has said all there is to say.
struct ExitCode {
  int code;
};

}  // namespace augur
