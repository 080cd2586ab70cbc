// Which divergence a rule takes: the one place that knows them all.
#pragma once

#include "mask/kl.h"
#include "mask/reverse_kl.h"
#include "mask/rule.h"
#include "mask/tv.h"

namespace augur {

// Calls f with a value of the divergence's type. A rule without one predicts the change of KL.
template <typename F>
decltype(auto) WithDivergence(Proximity proximity, F f) {
  switch (proximity) {
    case Proximity::kTv:
      return f(Tv());
    case Proximity::kReverseKl:
      return f(ReverseKl());
    case Proximity::kNone:
    case Proximity::kRatio:
    case Proximity::kKl:
      break;
  }
  return f(Kl());
}

}  // namespace augur
