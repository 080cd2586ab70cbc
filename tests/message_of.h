// The message of the Error an action throws, for tests that read it.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace augur {

inline std::string MessageOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace augur
