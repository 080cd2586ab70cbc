// Finds stop strings in a response that grows token by token.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace augur {

class StopTextFinder {
 public:
  // Adds the bytes of the next token; whether a stop string has appeared that ends within them.
  bool Add(std::string_view bytes, const std::vector<std::string>& stops) {
    tail_ += bytes;
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (tail_.find(stop) != std::string::npos) return true;
      longest = std::max(longest, stop.size());
    }
    if (tail_.size() >= longest && longest > 0) tail_.erase(0, tail_.size() - longest + 1);
    return false;
  }

 private:
  std::string tail_;  // the last bytes, one fewer than the longest stop string
};

}  // namespace augur
