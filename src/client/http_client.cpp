// SPDX-License-Identifier: Apache-2.0
#include "client/http_client.h"

#include <array>
#include <exception>
#include <optional>
#include <set>

#include "net/byte_stream.h"
#include "net/tls_context.h"
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

namespace warprow {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);

struct Connection {
  Connection(asio::io_context& io, asio::ssl::context* tls) : stream(tls, ByteSocket(io)) {}
  ByteStream stream;
  beast::flat_buffer buffer;
  bool used = false;  // by an earlier call
};

using Parser = http::response_parser<http::buffer_body>;

bool is_success(int status) { return status >= 200 && status < 300; }

}  // namespace

class HttpClient::Impl {
 public:
  Impl(HttpOrigin origin,
       std::vector<std::pair<std::string, std::string>> headers,
       Limits limits,
       const std::string& ca_file)
      : origin_(std::move(origin)),
        headers_(std::move(headers)),
        limits_(limits),
        tls_(origin_.tls ? client_tls_context(ca_file) : Result<TlsContext>()) {}

  void start(HttpCall call) { asio::co_spawn(io_, carry_out(std::move(call)), &rethrow); }

  void at(Clock::time_point time, std::function<void()> then) {
    asio::co_spawn(io_, wait_until(time, std::move(then)), &rethrow);
  }

  void drop_all() {
    for (Connection* connection : busy_) {
      connection->stream.cancel();
    }
  }

  void run() {
    io_.restart();
    io_.run();
  }

  bool run_for(std::chrono::milliseconds time) {
    io_.restart();
    io_.run_for(time);
    return !io_.stopped();
  }

 private:
  // Makes run() throw an exception of a callback, which is a bug of ours.
  static void rethrow(const std::exception_ptr& failure) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }

  asio::awaitable<void> wait_until(Clock::time_point time, std::function<void()> then) {
    asio::steady_timer timer(io_, time);
    co_await timer.async_wait(kNoThrow);
    then();
  }

  asio::awaitable<void> carry_out(HttpCall call);
  asio::awaitable<Result<std::unique_ptr<Connection>>> connect();
  // The error of the connect or of the TLS handshake.
  asio::awaitable<error_code> open(Connection& connection);
  // nullopt: the server had already closed this idle connection, so the call needs a new one.
  asio::awaitable<std::optional<Result<HttpAnswer>>> exchange(Connection& connection,
                                                              const HttpCall& call,
                                                              bool& keep);
  asio::awaitable<Result<HttpAnswer>> read_body(Connection& connection,
                                                Parser& parser,
                                                const HttpCall& call);
  // Parses what has been read, or reads more if nothing of it can be parsed.
  asio::awaitable<error_code> read_more(Connection& connection, Parser& parser);
  [[nodiscard]] std::string text_of(const HttpCall& call) const;
  [[nodiscard]] tl::unexpected<Error> broken(const error_code& error) const;

  HttpOrigin origin_;
  std::vector<std::pair<std::string, std::string>> headers_;
  Limits limits_;
  Result<TlsContext> tls_;  // null: plain HTTP
  asio::io_context io_{1};
  std::vector<std::unique_ptr<Connection>> idle_;
  std::set<Connection*> busy_;
  std::optional<tcp::resolver::results_type> endpoints_;
};

tl::unexpected<Error> HttpClient::Impl::broken(const error_code& error) const {
  const std::string why =
      error == http::error::end_of_stream || error == http::error::partial_message ||
              error == asio::ssl::error::stream_truncated
          ? "the server closed the connection before the answer's end"
      : error == asio::error::operation_aborted ? "the call was dropped"
      : error == beast::error::timeout ? fmt::format("no answer for {} s", limits_.silence.count())
                                       : error.message();
  return fail(ErrorCode::kInternal, fmt::format("{}: {}", origin_.url(), why));
}

std::string HttpClient::Impl::text_of(const HttpCall& call) const {
  std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: warprow\r\n",
                                call.method,
                                origin_.prefix,
                                call.path,
                                origin_.authority());
  for (const auto& [name, value] : headers_) {
    out += fmt::format("{}: {}\r\n", name, value);
  }
  if (!call.body.empty()) {
    out += "Content-Type: application/json\r\n";
  }
  if (!call.body.empty() || call.method == "POST") {
    out += fmt::format("Content-Length: {}\r\n", call.body.size());
  }
  return out + "\r\n" + call.body;
}

asio::awaitable<void> HttpClient::Impl::carry_out(HttpCall call) {
  Result<HttpAnswer> answer;
  while (true) {
    std::unique_ptr<Connection> connection;
    if (!idle_.empty()) {
      connection = std::move(idle_.back());
      idle_.pop_back();
    } else {
      Result<std::unique_ptr<Connection>> made = co_await connect();
      if (!made) {
        answer = tl::unexpected(made.error());
        break;
      }
      connection = *std::move(made);
    }
    bool keep = false;
    busy_.insert(connection.get());
    std::optional<Result<HttpAnswer>> got = co_await exchange(*connection, call, keep);
    busy_.erase(connection.get());
    if (keep) {
      connection->used = true;
      idle_.push_back(std::move(connection));
    }
    if (got) {
      answer = *std::move(got);
      break;
    }
  }
  if (call.on_end) {
    call.on_end(std::move(answer));
  }
}

asio::awaitable<Result<std::unique_ptr<Connection>>> HttpClient::Impl::connect() {
  const auto unreachable = [this](const std::string& why) {
    return fail(ErrorCode::kNotFound, fmt::format("cannot reach {}: {}", origin_.url(), why));
  };
  if (!tls_) {
    co_return tl::unexpected(tls_.error());
  }
  if (!endpoints_) {
    tcp::resolver resolver(io_);
    auto [error, found] = co_await resolver.async_resolve(origin_.host, origin_.port, kNoThrow);
    if (error) {
      co_return unreachable(error.message());
    }
    endpoints_ = found;
  }
  auto connection = std::make_unique<Connection>(io_, tls_->get());
  busy_.insert(connection.get());
  const error_code error = co_await open(*connection);
  busy_.erase(connection.get());
  if (error) {
    const std::string why =
        origin_.tls ? certificate_trouble(connection->stream.session()) : std::string();
    co_return unreachable(why.empty() ? error.message() : "its certificate: " + why);
  }
  co_return connection;
}

asio::awaitable<error_code> HttpClient::Impl::open(Connection& connection) {
  ByteStream& stream = connection.stream;
  stream.expires_after(limits_.connect);
  error_code error = asio::error::host_not_found;
  error_code ignored;
  for (const auto& found : *endpoints_) {
    stream.socket().close(ignored);
    error = co_await stream.connect(found.endpoint());
    if (!error || error == beast::error::timeout || error == asio::error::operation_aborted) {
      break;
    }
  }
  if (error) {
    co_return error;
  }
  stream.socket().set_option(tcp::no_delay(true), ignored);
  if (!stream.is_tls()) {
    co_return error_code();
  }
  expect_host(stream.session(), origin_.host);
  error = co_await stream.connect_tls();
  co_return error;
}

asio::awaitable<std::optional<Result<HttpAnswer>>> HttpClient::Impl::exchange(
    Connection& connection, const HttpCall& call, bool& keep) {
  const std::string bytes = text_of(call);
  Parser parser;
  parser.body_limit(boost::none);
  ByteStream& stream = connection.stream;
  error_code error = co_await stream.write(bytes, limits_.silence);
  // Read the response even if the write failed: a server may answer before it refuses the rest of a request.
  stream.expires_after(limits_.silence);
  error_code unread;
  while (!unread && !parser.is_header_done()) {
    unread = co_await read_more(connection, parser);
  }
  if (unread) {
    const bool is_ours =
        unread == beast::error::timeout || unread == asio::error::operation_aborted;
    const bool stale = connection.used && !parser.got_some() && !is_ours;
    if (stale) {
      co_return std::nullopt;
    }
    co_return broken(error ? error : unread);
  }
  Result<HttpAnswer> answer = co_await read_body(connection, parser, call);
  keep = answer && !error && parser.keep_alive();
  co_return answer;
}

asio::awaitable<error_code> HttpClient::Impl::read_more(Connection& connection, Parser& parser) {
  constexpr size_t kPiece = 16384;
  error_code error = http::error::need_more;
  if (connection.buffer.size() > 0) {
    connection.buffer.consume(parser.put(connection.buffer.data(), error));
  }
  if (error != http::error::need_more) {
    co_return error;
  }
  const ByteStream::Transfer read =
      co_await connection.stream.read_some(connection.buffer.prepare(kPiece));
  connection.buffer.commit(read.num_bytes);
  error = read.error;
  if (error == asio::error::eof && parser.got_some()) {
    parser.put_eof(error);  // the end of a body without a length
  } else if (error == asio::error::eof) {
    error = http::error::end_of_stream;
  }
  co_return error;
}

asio::awaitable<Result<HttpAnswer>> HttpClient::Impl::read_body(Connection& connection,
                                                                Parser& parser,
                                                                const HttpCall& call) {
  HttpAnswer answer;
  answer.status = parser.get().result_int();
  answer.content_type = std::string(parser.get()[http::field::content_type]);
  const bool in_pieces = call.on_piece && is_success(answer.status);
  std::array<char, 16384> bytes{};
  while (!parser.is_done()) {
    parser.get().body().data = bytes.data();
    parser.get().body().size = bytes.size();
    connection.stream.expires_after(limits_.silence);
    const error_code failed = co_await read_more(connection, parser);
    const std::string_view piece(bytes.data(), bytes.size() - parser.get().body().size);
    if (in_pieces && !piece.empty() && !call.on_piece(piece)) {
      co_return fail(ErrorCode::kInternal, "the answer was given up");
    }
    if (!in_pieces) {
      answer.body += piece;
    }
    if (failed && failed != http::error::need_buffer) {
      co_return broken(failed);
    }
  }
  co_return answer;
}

HttpClient::HttpClient(const HttpOrigin& origin,
                       std::vector<std::pair<std::string, std::string>> headers,
                       Limits limits,
                       const std::string& ca_file)
    : impl_(std::make_unique<Impl>(origin, std::move(headers), limits, ca_file)) {}

HttpClient::~HttpClient() = default;

void HttpClient::start(HttpCall call) { impl_->start(std::move(call)); }

void HttpClient::at(Clock::time_point time, std::function<void()> then) {
  impl_->at(time, std::move(then));
}

void HttpClient::run() { impl_->run(); }

void HttpClient::drop_all() { impl_->drop_all(); }

bool HttpClient::run_for(std::chrono::milliseconds time) { return impl_->run_for(time); }

Result<HttpAnswer> HttpClient::ask(HttpCall call) {
  Result<HttpAnswer> out = fail(ErrorCode::kInternal, "no answer");
  call.on_end = [&out](Result<HttpAnswer> answer) { out = std::move(answer); };
  start(std::move(call));
  run();
  return out;
}

}  // namespace warprow
