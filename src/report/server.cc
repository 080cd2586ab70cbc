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

class LocalServer {
 public:
  LocalServer(asio::io_context& context, uint16_t port,
              const std::function<PageAnswer(const std::string& target)>& answer)
      : acceptor_(context), answer_(answer) {
    const tcp::endpoint here(asio::ip::address_v4::loopback(), port);
    boost::system::error_code fault;
    acceptor_.open(here.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(here, fault);
    if (!fault) acceptor_.listen(asio::socket_base::max_listen_connections, fault);
    if (fault)
      throw Error(fmt::format("--port {}", port), fault.message(),
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
    response.set(http::field::x_frame_options, "DENY");
    if (answer.status == 405) response.set(http::field::allow, "GET, HEAD");
    response.keep_alive(request.keep_alive());
    response.body() = answer.body;
    response.prepare_payload();
    if (request.method() == http::verb::head) response.body().clear();
    return response;
  }

  PageAnswer Decide(const Request& request) const {
    constexpr const char* kPlain = "text/plain; charset=utf-8";
    if (!IsThisMachine(request[http::field::host])) {
      return {403, kPlain, "This server answers on 127.0.0.1 and localhost alone.\n"};
    }
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      return {405, kPlain, "There is nothing to change here.\n"};
    }
    try {
      return answer_(std::string(request.target()));
    } catch (const std::exception& fault) {
      return {500, kPlain, fmt::format("{}\n", fault.what())};
    }
  }

  // Whatever the port: a forwarded one may have another number.
  static bool IsThisMachine(beast::string_view host) {
    const size_t colon = host.find(':');
    const beast::string_view name = host.substr(0, colon), port = host.substr(std::min(colon, host.size()));
    const bool is_port = port.find_first_not_of("0123456789", 1) == beast::string_view::npos;
    return (name == "127.0.0.1" || name == "localhost") && is_port;
  }

  tcp::acceptor acceptor_;
  const std::function<PageAnswer(const std::string& target)>& answer_;
};

}  // namespace

void ServeLocally(uint16_t port, const std::function<PageAnswer(const std::string& target)>& answer,
                  const std::function<void(uint16_t port)>& listening) {
  asio::io_context context(1);
  LocalServer server(context, port, answer);
  asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([&](const boost::system::error_code&, int) { context.stop(); });
  listening(server.port());
  asio::co_spawn(context, server.Listen(), asio::detached);
  context.run();
}

}  // namespace augur
