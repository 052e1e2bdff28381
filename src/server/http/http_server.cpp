// SPDX-License-Identifier: Apache-2.0
#include "server/http/http_server.h"

#include "base/log.h"
#include "server/api.h"
#include "server/api_error.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

namespace warprow {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::seconds;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
constexpr uint32_t kMaxHeaderBytes = 64 * 1024;
constexpr uint64_t kMaxBodyBytes = 32 * 1024 * 1024;
constexpr seconds kReadTimeout{120};  // for a whole request, and for a connection without one
constexpr seconds kWriteTimeout{60};  // for a reader that takes nothing
constexpr seconds kLingerTimeout{5};  // for the rest of a request that was refused early

// Where a connection waits for its answer; shared with handlers that may come after its end.
struct Wakeup {
  explicit Wakeup(asio::io_context& io) : timer(io) {}
  void set() {
    signalled = true;
    timer.cancel();
  }
  asio::steady_timer timer;
  bool signalled = false;
  bool readable = false;  // the client sent something, or went away
};

struct Connection {
  explicit Connection(tcp::socket socket) : stream(std::move(socket)) {}
  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  bool busy = false;  // with a request that has been read
};

HttpRequest plain_request(http::request<http::string_body>&& message) {
  HttpRequest out;
  out.method = std::string(message.method_string());
  out.path = std::string(message.target());
  out.path.resize(std::min(out.path.find('?'), out.path.size()));
  out.authorization = std::string(message[http::field::authorization]);
  out.body = std::move(message.body());
  return out;
}

// The answer to what is no request, or nothing where the client is gone or too slow.
std::optional<HttpReply> refusal(const error_code& error) {
  if (error == http::error::body_limit) {
    return error_reply({413,
                        "invalid_request_error",
                        fmt::format("the body is larger than {} bytes", kMaxBodyBytes)});
  }
  if (error == http::error::header_limit) {
    return error_reply({431,
                        "invalid_request_error",
                        fmt::format("the headers are larger than {} bytes", kMaxHeaderBytes)});
  }
  const bool is_protocol =
      error.category() == http::make_error_code(http::error::bad_method).category();
  if (!is_protocol || error == http::error::end_of_stream ||
      error == http::error::partial_message) {
    return std::nullopt;
  }
  return error_reply({400, "invalid_request_error", "not HTTP: " + error.message()});
}

bool peer_is_gone(tcp::socket& socket) {
  char byte = 0;
  error_code error;
  socket.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, error);
  return error && error != asio::error::would_block;
}

class BeastServer final : public HttpServer {
 public:
  explicit BeastServer() : acceptor_(io_), signals_(io_) {}

  Result<void> bind_to(const std::string& host, uint16_t port);
  Result<void> run(Api& api, const std::function<void(const std::string& url)>& on_ready) override;

 private:
  asio::awaitable<void> accept_connections();
  asio::awaitable<void> serve(tcp::socket socket);
  // The next request; nullopt: the connection is over, perhaps after a refusal.
  asio::awaitable<std::optional<http::request<http::string_body>>> read_request(
      Connection& connection);
  // Each returns whether the connection can go on.
  asio::awaitable<bool> answer(Connection& connection, http::request<http::string_body> message);
  asio::awaitable<bool> send_reply(Connection& connection,
                                   HttpReply reply,
                                   unsigned version,
                                   bool keep);
  asio::awaitable<bool> send_generation(Connection& connection,
                                        Generation& generation,
                                        std::shared_ptr<Wakeup> wakeup,
                                        unsigned version,
                                        bool keep);
  asio::awaitable<bool> send_head(Connection& connection,
                                  const Generation& generation,
                                  unsigned version,
                                  bool keep);
  asio::awaitable<bool> send_events(Connection& connection, std::string events, bool chunked);
  asio::awaitable<void> linger(Connection& connection);
  void wait_for_signal();
  void drain();
  void end_when_drained();

  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  Api* api_ = nullptr;
  std::set<Connection*> connections_;
  bool draining_ = false;
};

Result<void> BeastServer::bind_to(const std::string& host, uint16_t port) {
  error_code error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(host, std::to_string(port), error);
  if (!error && !found.empty()) {
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) {
      acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
      acceptor_.bind(endpoint, error);
    }
  }
  if (error) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--host {} --port {}: {}", host, port, error.message()));
  }
  return {};
}

Result<void> BeastServer::run(Api& api,
                              const std::function<void(const std::string& url)>& on_ready) {
  api_ = &api;
  error_code error;
  acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("--port: {}", error.message()));
  }
  signals_.add(SIGINT);
  signals_.add(SIGTERM);
  wait_for_signal();
  asio::co_spawn(io_, accept_connections(), [](const std::exception_ptr&) {});
  const tcp::endpoint local = acceptor_.local_endpoint();
  const std::string address = local.address().to_string();
  on_ready(local.address().is_v6() ? fmt::format("http://[{}]:{}", address, local.port())
                                   : fmt::format("http://{}:{}", address, local.port()));
  io_.run();
  return {};
}

void BeastServer::wait_for_signal() {
  signals_.async_wait([this](const error_code& error, int number) {
    if (error) {
      return;
    }
    if (draining_) {
      std::_Exit(128 + number);
    }
    wait_for_signal();
    drain();
  });
}

// Connections without a request are closed, the others end with their answers.
void BeastServer::drain() {
  draining_ = true;
  acceptor_.close();
  for (Connection* connection : connections_) {
    if (!connection->busy) {
      connection->stream.cancel();
    }
  }
  end_when_drained();
}

void BeastServer::end_when_drained() {
  if (draining_ && connections_.empty()) {
    signals_.cancel();
  }
}

asio::awaitable<void> BeastServer::accept_connections() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(kNoThrow);
    if (!error) {
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      asio::co_spawn(io_, serve(std::move(socket)), [](const std::exception_ptr& failure) {
        if (failure) {
          WR_LOG_ERROR("a connection ended with an exception");
        }
      });
    } else if (acceptor_.is_open()) {  // out of file descriptors, most likely
      WR_LOG_WARN("cannot accept a connection: {}", error.message());
      asio::steady_timer pause(io_, std::chrono::milliseconds(100));
      co_await pause.async_wait(kNoThrow);
    }
  }
}

asio::awaitable<void> BeastServer::serve(tcp::socket socket) {
  // Registered as long as it lives, however the coroutine ends.
  struct Registered {
    Registered(BeastServer& server, tcp::socket socket)
        : owner(server), connection(std::move(socket)) {
      owner.connections_.insert(&connection);
    }
    ~Registered() {
      owner.connections_.erase(&connection);
      owner.end_when_drained();
    }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
    BeastServer& owner;
    Connection connection;
  };
  Registered registered(*this, std::move(socket));
  Connection& connection = registered.connection;
  bool go_on = true;
  while (go_on && !draining_) {
    std::optional<http::request<http::string_body>> message = co_await read_request(connection);
    if (!message) {
      break;
    }
    connection.busy = true;
    go_on = co_await answer(connection, std::move(*message));
    connection.busy = false;
  }
  error_code ignored;
  connection.stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
}

asio::awaitable<std::optional<http::request<http::string_body>>> BeastServer::read_request(
    Connection& connection) {
  http::request_parser<http::string_body> parser;
  parser.header_limit(kMaxHeaderBytes);
  parser.body_limit(kMaxBodyBytes);
  connection.stream.expires_after(kReadTimeout);
  auto [error, num_read] =
      co_await http::async_read_header(connection.stream, connection.buffer, parser, kNoThrow);
  if (!error && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> go_ahead(http::status::continue_, parser.get().version());
    auto [failed, num_written] = co_await http::async_write(connection.stream, go_ahead, kNoThrow);
    error = failed;
  }
  if (!error) {
    auto [failed, num_body] =
        co_await http::async_read(connection.stream, connection.buffer, parser, kNoThrow);
    error = failed;
  }
  if (!error) {
    co_return parser.release();
  }
  if (std::optional<HttpReply> reply = refusal(error)) {
    co_await send_reply(connection, std::move(*reply), 11, false);
    co_await linger(connection);
  }
  co_return std::nullopt;
}

asio::awaitable<bool> BeastServer::answer(Connection& connection,
                                          http::request<http::string_body> message) {
  const unsigned version = message.version();
  const bool keep = message.keep_alive();
  auto wakeup = std::make_shared<Wakeup>(io_);
  Api::Answer answer = api_->handle(plain_request(std::move(message)), [this, wakeup] {
    asio::post(io_, [wakeup] { wakeup->set(); });
  });
  if (auto* reply = std::get_if<HttpReply>(&answer)) {
    co_return co_await send_reply(connection, std::move(*reply), version, keep);
  }
  auto& generation = std::get<std::unique_ptr<Generation>>(answer);
  const bool go_on = co_await send_generation(connection, *generation, wakeup, version, keep);
  error_code ignored;
  connection.stream.socket().cancel(ignored);  // the watch for the client's end
  co_return go_on;
}

asio::awaitable<bool> BeastServer::send_reply(Connection& connection,
                                              HttpReply reply,
                                              unsigned version,
                                              bool keep) {
  http::response<http::string_body> message(static_cast<http::status>(reply.status), version);
  for (const auto& [name, value] : reply.headers) {
    message.set(name, value);
  }
  if (!reply.content_type.empty()) {
    message.set(http::field::content_type, reply.content_type);
  }
  message.keep_alive(keep && !draining_);
  message.body() = std::move(reply.body);
  message.prepare_payload();
  connection.stream.expires_after(kWriteTimeout);
  auto [error, num_written] = co_await http::async_write(connection.stream, message, kNoThrow);
  co_return !error && message.keep_alive();
}

asio::awaitable<bool> BeastServer::send_generation(Connection& connection,
                                                   Generation& generation,
                                                   std::shared_ptr<Wakeup> wakeup,
                                                   unsigned version,
                                                   bool keep) {
  tcp::socket& socket = connection.stream.socket();
  socket.async_wait(tcp::socket::wait_read, [wakeup](const error_code& error) {
    if (!error) {
      wakeup->readable = true;
      wakeup->set();
    }
  });
  const bool chunked = version >= 11;
  keep = keep && chunked;
  if (generation.is_stream() && !co_await send_head(connection, generation, version, keep)) {
    co_return false;
  }
  while (true) {
    wakeup->signalled = false;
    // A pipelined request is readable too; it waits in the socket.
    if (std::exchange(wakeup->readable, false) && peer_is_gone(socket)) {
      co_return false;
    }
    std::string events = generation.take();
    if (!events.empty() && !co_await send_events(connection, std::move(events), chunked)) {
      co_return false;
    }
    if (generation.finished()) {
      break;
    }
    if (!wakeup->signalled) {
      wakeup->timer.expires_at(asio::steady_timer::time_point::max());
      co_await wakeup->timer.async_wait(kNoThrow);
    }
  }
  if (!generation.is_stream()) {
    co_return co_await send_reply(connection, generation.reply(), version, keep);
  }
  if (chunked) {
    connection.stream.expires_after(kWriteTimeout);
    auto [error, num_written] =
        co_await asio::async_write(connection.stream, http::make_chunk_last(), kNoThrow);
    keep = keep && !error;
  }
  co_return keep;
}

asio::awaitable<bool> BeastServer::send_head(Connection& connection,
                                             const Generation& generation,
                                             unsigned version,
                                             bool keep) {
  http::response<http::empty_body> head(http::status::ok, version);
  for (const auto& [name, value] : generation.headers()) {
    head.set(name, value);
  }
  head.set(http::field::content_type, "text/event-stream; charset=utf-8");
  head.set(http::field::cache_control, "no-cache");
  head.keep_alive(keep);
  head.chunked(version >= 11);
  http::response_serializer<http::empty_body> serializer(head);
  connection.stream.expires_after(kWriteTimeout);
  auto [error, num_written] =
      co_await http::async_write_header(connection.stream, serializer, kNoThrow);
  co_return !error;
}

asio::awaitable<bool> BeastServer::send_events(Connection& connection,
                                               std::string events,
                                               bool chunked) {
  connection.stream.expires_after(kWriteTimeout);
  const asio::const_buffer bytes(events.data(), events.size());
  if (chunked) {
    auto [error, num_written] =
        co_await asio::async_write(connection.stream, http::make_chunk(bytes), kNoThrow);
    co_return !error;
  }
  auto [error, num_written] = co_await asio::async_write(connection.stream, bytes, kNoThrow);
  co_return !error;
}

// Closing with unread bytes would reset the connection, and the client might lose the refusal.
asio::awaitable<void> BeastServer::linger(Connection& connection) {
  error_code ignored;
  connection.stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  connection.stream.expires_after(kLingerTimeout);
  char bytes[4096];
  while (true) {
    auto [error, num_read] =
        co_await connection.stream.async_read_some(asio::buffer(bytes), kNoThrow);
    if (error) {
      co_return;
    }
  }
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::bind(const std::string& host, uint16_t port) {
  auto server = std::make_unique<BeastServer>();
  if (Result<void> bound = server->bind_to(host, port); !bound) {
    return tl::unexpected(bound.error());
  }
  return server;
}

}  // namespace warprow
