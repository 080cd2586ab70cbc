// At the border to Python: an augur::Error becomes a ValueError.
#pragma once

#include <c10/util/Exception.h>

#include "base/error.h"

namespace augur {

template <typename F>
auto ReportingValueErrors(F f) {
  try {
    return f();
  } catch (const Error& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace augur
