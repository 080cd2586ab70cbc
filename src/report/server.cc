#include "report/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>

#include "base/error.h"

namespace augur {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr auto kPatience = std::chrono::seconds(30);  // with a browser that says nothing
constexpr uint32_t kLongestHeader = 16 << 10, kLongestBody = 1 << 20;

asio::ip::address AddressOf(const std::string& host) {
  asio::io_context context;
  boost::system::error_code fault;
  const auto found = tcp::resolver(context).resolve(host, "", fault);
  if (fault || found.empty()) {
    throw Error(fmt::format("--host {}", host), "is no address and no name of a machine",
                "name an address of this machine, such as 127.0.0.1 or 0.0.0.0");
  }
  return found.begin()->endpoint().address();
}

// In a time that says nothing about where they differ.
bool SameToken(std::string_view given, std::string_view wanted) {
  unsigned difference = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(given.size(), wanted.size()); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(wanted[i]);
  }
  return difference == 0;
}

// Takes "token=..." out of a target and returns it.
std::string TakeToken(std::string* target) {
  constexpr std::string_view kName = "token=";
  size_t at = target->find('?');
  while (at != std::string::npos && target->compare(at + 1, kName.size(), kName) != 0)
    at = target->find('&', at + 1);
  if (at == std::string::npos) return "";
  const size_t end = std::min(target->find('&', at + 1), target->size());
  std::string token = target->substr(at + 1 + kName.size(), end - at - 1 - kName.size());
  if (end == target->size())
    target->erase(at);
  else
    target->erase(at + 1, end - at);
  return token;
}

class PageServer {
 public:
  PageServer(asio::io_context& context, const ServerOptions& options,
             const std::function<PageAnswer(const std::string& target)>& answer)
      : acceptor_(context), token_(options.token), answer_(answer) {
    const tcp::endpoint here(AddressOf(options.host), options.port);
    boost::system::error_code fault;
    acceptor_.open(here.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(here, fault);
    if (fault == boost::system::errc::address_not_available) {
      throw Error(fmt::format("--host {}", options.host), "is no address of this machine",
                  "name one that `ip address` lists, or 0.0.0.0 for all of them");
    }
    if (!fault) acceptor_.listen(asio::socket_base::max_listen_connections, fault);
    if (fault)
      throw Error(fmt::format("--port {}", options.port), fault.message(),
                  "choose another port, or 0 for a free one");
  }

  uint16_t port() const { return acceptor_.local_endpoint().port(); }

  asio::awaitable<void> Listen() {
    asio::steady_timer pause(acceptor_.get_executor());
    while (true) {
      boost::system::error_code fault;
      tcp::socket socket = co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, fault));
      if (fault) {  // too many connections: some end soon
        pause.expires_after(std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::use_awaitable);
        continue;
      }
      asio::co_spawn(acceptor_.get_executor(), Converse(beast::tcp_stream(std::move(socket))),
                     asio::detached);
    }
  }

 private:
  using Request = http::request<http::string_body>;
  using Response = http::response<http::string_body>;

  // One connection, request after request; whatever goes wrong with it ends it alone.
  asio::awaitable<void> Converse(beast::tcp_stream stream) {
    beast::flat_buffer buffer;
    try {
      bool goes_on = true;
      while (goes_on) {
        http::request_parser<http::string_body> parser;
        parser.header_limit(kLongestHeader);
        parser.body_limit(kLongestBody);
        stream.expires_after(kPatience);
        co_await http::async_read(stream, buffer, parser, asio::use_awaitable);
        const Response response = Respond(parser.get());
        goes_on = response.keep_alive();
        co_await http::async_write(stream, response, asio::use_awaitable);
      }
    } catch (const boost::system::system_error&) {
    }
    boost::system::error_code ignored;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  Response Respond(const Request& request) const {
    const PageAnswer answer = Decide(request);
    Response response(static_cast<http::status>(answer.status), request.version());
    response.set(http::field::content_type, answer.type);
    response.set(http::field::cache_control, "no-store");
    response.set("X-Content-Type-Options", "nosniff");
    response.set("Cross-Origin-Resource-Policy", "same-origin");
    response.set("Referrer-Policy", "no-referrer");
    // A notebook server or an editor shows the page in a frame of its own; only they know the token.
    if (token_.empty()) response.set(http::field::x_frame_options, "DENY");
    if (answer.status == 405) response.set(http::field::allow, "GET, HEAD");
    response.keep_alive(request.keep_alive());
    response.body() = answer.body;
    response.prepare_payload();
    if (request.method() == http::verb::head) response.body().clear();
    return response;
  }

  PageAnswer Decide(const Request& request) const {
    constexpr const char* kPlain = "text/plain; charset=utf-8";
    std::string target(request.target());
    if (token_.empty() && !IsThisMachine(request[http::field::host])) {
      return {403, kPlain, "This server answers on 127.0.0.1 and localhost alone.\n"};
    }
    if (!token_.empty() && !SameToken(TakeToken(&target), token_)) {
      return {403, kPlain, "This page needs its token: open the URL that augur watch printed.\n"};
    }
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      return {405, kPlain, "There is nothing to change here.\n"};
    }
    try {
      return answer_(target);
    } catch (const std::exception& fault) {
      return {500, kPlain, fmt::format("{}\n", fault.what())};
    }
  }

  // On any port: a forwarded one may have another number.
  static bool IsThisMachine(beast::string_view host) {
    const size_t colon = host.find(':', host.starts_with('[') ? host.find(']') : 0);
    const beast::string_view name = host.substr(0, colon), port = host.substr(std::min(colon, host.size()));
    const bool is_port = port.find_first_not_of("0123456789", 1) == beast::string_view::npos;
    return (name == "127.0.0.1" || name == "[::1]" || beast::iequals(name, "localhost")) && is_port;
  }

  tcp::acceptor acceptor_;
  const std::string token_;
  const std::function<PageAnswer(const std::string& target)>& answer_;
};

}  // namespace

bool IsLoopback(const std::string& host) { return AddressOf(host).is_loopback(); }

void Serve(const ServerOptions& options, const std::function<PageAnswer(const std::string& target)>& answer,
           const std::function<void(uint16_t port)>& listening) {
  asio::io_context context(1);
  PageServer server(context, options, answer);
  asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([&](const boost::system::error_code&, int) { context.stop(); });
  listening(server.port());
  asio::co_spawn(context, server.Listen(), asio::detached);
  context.run();
}

}  // namespace augur
