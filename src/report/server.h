// A small HTTP server for this machine alone, on Boost.Beast.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>  // Boost 1.74's awaitable.hpp uses std::exchange and does not include it

namespace augur {

struct PageAnswer {
  unsigned status = 200;
  std::string type = "text/html; charset=utf-8";
  std::string body;
};

// Serves GET and HEAD on 127.0.0.1 until SIGINT or SIGTERM. `answer` is given the target
// ("/tokens.json?run=0") and called by one thread at a time. Requests for another host than this machine are
// refused, so that no page of the web can read along under a name of its own. Port 0 takes a free one;
// `listening` is told which. Throws Error where the port is taken.
void ServeLocally(uint16_t port, const std::function<PageAnswer(const std::string& target)>& answer,
                  const std::function<void(uint16_t port)>& listening);

}  // namespace augur
