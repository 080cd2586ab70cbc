// A small HTTP server for the page, on Boost.Beast.
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

struct ServerOptions {
  std::string host = "127.0.0.1";  // a name or address of this machine; 0.0.0.0 listens on all of them
  uint16_t port = 0;               // 0 takes a free one
  // What every request must carry as ?token=...; empty: none. A server without one refuses requests for
  // another host than this machine, so that no page of the web can read along under a name of its own.
  std::string token;
};

// Whether a host is this machine alone: a loopback address, or the name localhost.
bool IsLoopback(const std::string& host);

// Serves GET and HEAD until SIGINT or SIGTERM. `answer` is given the target without the token
// ("/tokens.json?run=0") and called by one thread at a time. `listening` is given the port. Throws Error
// where the host is not this machine's or the port is taken.
void Serve(const ServerOptions& options, const std::function<PageAnswer(const std::string& target)>& answer,
           const std::function<void(uint16_t port)>& listening);

}  // namespace augur
