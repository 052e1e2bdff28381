// SPDX-License-Identifier: Apache-2.0
#include "server/http/connection.h"

#include "server/response/api_error.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>
#include <variant>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

namespace warprow {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds kLingerTimeout{5};  // for the rest of a request refused early
constexpr size_t kPiece = 4096;                    // bytes of one read
// Bytes of the next requests that are read while an answer is made. Past this limit the connection no longer watches
// for the client's close.
constexpr size_t kMostAhead = 64 * 1024;
// Approximate memory of a connection without a request: sockets, coroutines, the first piece. With TLS also OpenSSL's
// state.
constexpr uint64_t kPlainBytes = 8 * 1024;
constexpr uint64_t kTlsBytes = 40 * 1024;
// Bytes of an unread body that are discarded before the connection closes, so that the client sees the refusal. This
// much is likely to be in flight already.
constexpr size_t kMostUnread = 1024 * 1024;
constexpr size_t kAnyNumber = std::numeric_limits<size_t>::max();  // for a client with a valid key

// GCC 12 destroys some temporaries of a coroutine twice, so functions make the replies and errors.
HttpReply compressed_refusal() {
  return error_reply(
      {415, "invalid_request_error", "bodies must not be compressed (Content-Encoding)"});
}

HttpReply host_refusal(std::string_view host) {
  return error_reply({403,
                      "permission_error",
                      fmt::format("Host: '{}' is not served here; --allowed-hosts adds names",
                                  host.substr(0, host.find_first_of("\r\n")))});
}

HttpReply page_refusal(std::string_view origin) {
  return error_reply({403,
                      "permission_error",
                      fmt::format("Origin: web pages of '{}' may not call this server; "
                                  "--allowed-origins adds them",
                                  origin)});
}

ApiError shutdown_error() {
  return {503, "service_unavailable", "the server shut down before the answer's end"};
}

HttpReply plain_http_refusal() {
  return error_reply({400, "invalid_request_error", "this port speaks HTTPS, and this was HTTP"});
}

// OpenSSL reports this error if the first bytes are an HTTP method.
bool is_plain_http(const error_code& error) {
  return error.category() == asio::error::get_ssl_category() &&
         ERR_GET_REASON(error.value()) == SSL_R_HTTP_REQUEST;
}

AnswerPool::Lane lane_of(Api::Effort effort, size_t body_bytes) {
  switch (effort) {
    case Api::Effort::kReport:
      return AnswerPool::Lane::kReport;
    case Api::Effort::kCommand:
    case Api::Effort::kUpdate:
      return AnswerPool::Lane::kCommand;
    case Api::Effort::kNone:
    case Api::Effort::kText:
      break;
  }
  return body_bytes > AnswerPool::kMostSmallBytes ? AnswerPool::Lane::kLargeText
                                                  : AnswerPool::Lane::kSmallText;
}

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

// The status line and the headers.
std::string text_of(const http::response<http::empty_body>& message) {
  std::string out = fmt::format("HTTP/{}.{} {} {}\r\n",
                                message.version() / 10,
                                message.version() % 10,
                                message.result_int(),
                                view(message.reason()));
  for (const auto& field : message) {
    out += fmt::format("{}: {}\r\n", view(field.name_string()), view(field.value()));
  }
  return out + "\r\n";
}

// Without the query, and without a slash at the end.
std::string path_of(std::string_view target) {
  std::string path(target.substr(0, target.find('?')));
  if (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

}  // namespace

Connection::Connection(ConnectionHost& host, ByteSocket socket, const ClientAddress& client)
    : host_(host),
      stream_(host.tls, std::move(socket)),
      client_(client.name),
      client_group_(client.group),
      memory_(host.memory, MemoryBudget::Use::kConnection) {}

uint64_t Connection::least_memory() const { return stream_.is_tls() ? kTlsBytes : kPlainBytes; }

asio::awaitable<bool> Connection::begin() {
  const bool has_room = memory_.resize(least_memory());
  if (!has_room && stream_.is_tls()) {
    stream_.drop_tls();  // close without a TLS alert
  } else if (!has_room) {
    HttpReply refused = overload_reply("connections together have reached their memory limit");
    co_await refuse(std::move(refused));
  }
  co_return has_room;
}

// A body or pipelined bytes may have made the buffer large.
void Connection::trim_buffer() {
  if (buffer_.size() == 0 && buffer_.capacity() > kPiece) {
    buffer_.shrink_to_fit();
  }
  (void)memory_.resize(least_memory() + buffer_.size());
}

void Connection::wake() {
  if (wakeup_) {
    wakeup_->set();
  }
}

asio::awaitable<void> Connection::serve() {
  bool go_on = co_await begin();
  if (go_on) {
    go_on = co_await shake_hands();
  }
  while (go_on &&
         !host_.closing) {  // a co_await behind && in a loop's condition would always run (GCC 12)
    if (!co_await wait_for_bytes()) {
      break;
    }
    go_on = co_await serve_request();
    go_on = go_on && !host_.draining;
  }
  co_await say_farewell();
  error_code ignored;
  stream_.socket().shutdown(ByteSocket::shutdown_both, ignored);
}

asio::awaitable<bool> Connection::shake_hands() {
  if (!stream_.is_tls()) {
    co_return true;
  }
  stream_.expires_after(host_.options.read_timeout);
  const error_code error = co_await stream_.accept_tls();
  if (error) {
    stream_.drop_tls();
    if (is_plain_http(error)) {
      HttpReply refused = plain_http_refusal();
      co_await refuse(std::move(refused));
    }
  }
  co_return !error;
}

asio::awaitable<bool> Connection::wait_for_bytes() {
  if (buffer_.size() > 0) {
    co_return true;
  }
  stream_.expires_after(host_.options.idle_timeout);
  const ByteStream::Transfer read = co_await stream_.read_some(buffer_.prepare(kPiece));
  buffer_.commit(read.num_bytes);
  co_return !read.error;
}

asio::awaitable<bool> Connection::serve_request() {
  RequestReader reader(stream_, buffer_, host_.options, host_.memory);
  if (!co_await reader.read_head()) {
    if (std::optional<HttpReply> reply = reader.take_refusal()) {
      co_await refuse(std::move(*reply));
    }
    co_return false;
  }
  HttpRequest request = begin_exchange(reader.head());
  if (std::optional<HttpReply> reply = judge(request, reader.head())) {
    co_return co_await refuse_request(std::move(*reply), reader.has_body(), kMostUnread);
  }
  const Api::Effort effort = Api::effort(request);
  if (effort == Api::Effort::kText || effort == Api::Effort::kUpdate) {
    if (!co_await reader.read_body()) {
      if (std::optional<HttpReply> reply = reader.take_refusal()) {
        co_await refuse_request(std::move(*reply), true, kAnyNumber);
      }
      co_return false;
    }
    request.body = reader.take_body();
  }
  const bool is_read = !reader.has_body();
  exchange_.keep = exchange_.keep && is_read;
  trim_buffer();
  busy_ = true;
  MemoryShare memory = reader.take_body_memory();
  const bool go_on = co_await answer(std::move(request), std::move(memory));
  busy_ = false;
  if (!is_read) {
    co_await linger(kMostUnread);
  }
  co_return go_on;
}

std::optional<HttpReply> Connection::judge(const HttpRequest& request,
                                           const RequestReader::Head& head) const {
  std::optional<HttpReply> out = judge_sender(head);
  if (!out) {
    out = host_.api.judge(request);
  }
  const std::string_view encoding = view(head[http::field::content_encoding]);
  if (!out && !encoding.empty() && encoding != "identity") {
    out = compressed_refusal();
  }
  return out;
}

// Protects a server without API keys from web pages: from pages that reach the server under their own host name, and
// from pages of other origins, which a browser lets send requests that need no preflight.
std::optional<HttpReply> Connection::judge_sender(const RequestReader::Head& head) const {
  const std::string_view host = view(head[http::field::host]);
  if (!host.empty() && !host_.host_rule.allows(host_name(host).value_or(""))) {
    return host_refusal(host);
  }
  const std::string_view site = view(head["Sec-Fetch-Site"]);
  const bool is_foreign = site == "cross-site" || site == "same-site";
  const std::string_view origin = view(head[http::field::origin]);
  if (host_.bars_foreign_pages && head.method() == http::verb::post && is_foreign &&
      exchange_.cors.empty()) {
    return page_refusal(origin);
  }
  return std::nullopt;
}

asio::awaitable<void> Connection::refuse(HttpReply reply) {
  exchange_ = {};
  exchange_.keep = false;
  exchange_.request_id = made_id();
  host_.api.watch().metrics.count_http("other", reply.status);
  co_await send_reply(std::move(reply));
  co_await linger(kMostUnread);
}

asio::awaitable<bool> Connection::refuse_request(HttpReply reply,
                                                 bool has_body,
                                                 size_t most_bytes) {
  exchange_.keep = exchange_.keep && !has_body;
  host_.api.watch().metrics.count_http(Api::known_path(path_of(line_.target)), reply.status);
  const bool go_on = co_await send_reply(std::move(reply));
  log(line_);
  if (has_body) {
    co_await linger(most_bytes);
  }
  co_return go_on && !has_body;
}

HttpRequest Connection::begin_exchange(const RequestReader::Head& message) {
  HttpRequest out;
  out.method = std::string(message.method_string());
  const std::string target(message.target());
  out.path = path_of(target);
  const size_t question = std::min(target.find('?'), target.size());
  out.query = target.substr(std::min(question + 1, target.size()));
  out.authorization = std::string(message[http::field::authorization]);
  out.traceparent = std::string(message["traceparent"]);
  out.tracestate = std::string(message["tracestate"]);
  if (const auto key = message["X-Api-Key"]; out.authorization.empty() && !key.empty()) {
    out.authorization = "Bearer " + std::string(key);  // as clients of Anthropic's API send it
  }
  const std::string given(message["X-Request-Id"]);
  out.request_id = is_plain_id(given) ? given : made_id();
  std::optional<std::string> wanted_headers;  // of a preflight
  if (out.method == "OPTIONS") {
    wanted_headers = std::string(message[http::field::access_control_request_headers]);
  }
  exchange_ = {.version = message.version(),
               .keep = message.keep_alive(),
               .head_only = out.method == "HEAD",
               .request_id = out.request_id,
               .cors = cors_headers(
                   host_.options.cors, std::string(message[http::field::origin]), wanted_headers)};
  line_ = {.client = client_, .method = out.method, .target = target, .request_id = out.request_id};
  return out;
}

asio::awaitable<bool> Connection::answer(HttpRequest request, MemoryShare memory) {
  const Clock::time_point begin = Clock::now();
  const std::string path = Api::known_path(request.path);
  wakeup_ = std::make_shared<Wakeup>(host_.io);
  bool go_on = false;
  Api::Answer made = co_await make_answer(std::move(request), std::move(memory));
  if (auto* reply = std::get_if<HttpReply>(&made)) {
    go_on = co_await send_reply(std::move(*reply));
  } else {
    go_on = co_await send_generation(*std::get<std::unique_ptr<Generation>>(made));
  }
  wakeup_ = nullptr;
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  line_.ms = took.count();
  host_.api.watch().metrics.count_http(path, line_.status);
  log(line_);
  co_return go_on;
}

asio::awaitable<Api::Answer> Connection::make_answer(HttpRequest request, MemoryShare /*memory*/) {
  const Api::Effort effort = Api::effort(request);
  if (effort == Api::Effort::kNone) {
    co_return host_.api.handle(request, make_wake());
  }
  const AnswerPool::Lane lane = lane_of(effort, request.body.size());
  auto job = std::make_shared<AnswerJob>();
  job->request = std::move(request);
  job->request.may_compile = false;
  co_await run(job, lane);
  if (std::holds_alternative<NeedsGrammar>(job->answer)) {
    job->request.may_compile = true;
    co_await run(job, AnswerPool::Lane::kGrammar);
  }
  co_return std::move(job->answer);
}

Wake Connection::make_wake() {
  return [this_io = &host_.io, wakeup = wakeup_] {
    asio::post(*this_io, [wakeup] { wakeup->set(); });
  };
}

// Waits until the job's answer is made. The job outlives this connection if it must.
asio::awaitable<void> Connection::run(std::shared_ptr<AnswerJob> job, AnswerPool::Lane lane) {
  const std::string client = client_group_ + "\n" + job->request.authorization;
  job->done = false;
  const bool taken =
      host_.pool.submit(lane, client, [job, wake = make_wake(), &host = host_, wakeup = wakeup_] {
        job->answer = host.expired ? Api::Answer(error_reply(shutdown_error()))
                                   : host.api.handle(job->request, wake);
        if (!std::holds_alternative<NeedsGrammar>(job->answer)) {
          job->request = {};
        }
        asio::post(host.io, [job, wakeup] {
          job->done = true;
          wakeup->set();
        });
      });
  if (!taken) {
    job->answer = overload_reply("too many requests wait to be read (--max-waiting-texts)");
    co_return;
  }
  while (!job->done) {
    wakeup_->signalled = false;
    wakeup_->timer.expires_at(Clock::time_point::max());
    co_await wakeup_->timer.async_wait(kNoThrow);
  }
}

HttpHeaders Connection::common_headers() const {
  HttpHeaders out = exchange_.cors;
  out.emplace_back("X-Request-Id", exchange_.request_id);
  return out;
}

std::string Connection::made_id() {
  return fmt::format("{:016x}{:016x}", host_.random(), host_.random());
}

asio::awaitable<bool> Connection::send_reply(HttpReply reply) {
  http::response<http::empty_body> message(static_cast<http::status>(reply.status),
                                           exchange_.version);
  for (const auto& [name, value] : common_headers()) {
    message.set(name, value);
  }
  for (const auto& [name, value] : reply.headers) {
    message.set(name, value);
  }
  if (!reply.content_type.empty()) {
    message.set(http::field::content_type, reply.content_type);
  }
  message.keep_alive(exchange_.keep && !host_.draining);
  message.content_length(reply.body.size());
  if (exchange_.head_only) {
    reply.body.clear();
  }
  line_.status = reply.status;
  line_.num_bytes = reply.body.size();
  const bool keep = message.keep_alive();
  std::string bytes = text_of(message);
  bytes += reply.body;
  const bool written = co_await write(bytes);
  co_return written&& keep;
}

asio::awaitable<bool> Connection::write(std::string_view bytes) {
  const error_code error = co_await stream_.write(bytes, host_.options.write_timeout);
  co_return !error;
}

// Detects the client's close by reading on. Bytes that arrive belong to the next request. End of stream means that the
// client no longer waits for the answer.
void Connection::watch() {
  buffer_.commit(std::exchange(wakeup_->num_read, 0));
  if (wakeup_->reading || wakeup_->gone || buffer_.size() >= kMostAhead ||
      !memory_.resize(least_memory() + buffer_.size() + kPiece)) {
    return;
  }
  wakeup_->reading = true;
  stream_.expires_never();
  stream_.read_some(buffer_.prepare(kPiece), [wakeup = wakeup_](ByteStream::Transfer read) {
    wakeup->reading = false;
    wakeup->num_read = read.num_bytes;
    wakeup->gone = read.error && read.error != asio::error::operation_aborted;
    wakeup->set();
  });
}

asio::awaitable<void> Connection::end_watch() {
  error_code ignored;
  stream_.socket().cancel(ignored);
  while (wakeup_->reading) {
    wakeup_->timer.expires_at(Clock::time_point::max());
    co_await wakeup_->timer.async_wait(kNoThrow);
  }
  buffer_.commit(std::exchange(wakeup_->num_read, 0));
}

asio::awaitable<bool> Connection::send_generation(Generation& generation) {
  watch();
  const bool chunked = exchange_.version >= 11;
  exchange_.keep = exchange_.keep && (chunked || !generation.is_stream());
  bool good = true;
  if (generation.is_stream()) {
    good = co_await send_head(generation);
  }
  if (good) {
    good = co_await send_events_until_end(generation, chunked);
  }
  co_await end_watch();
  if (!good) {
    host_.api.watch().metrics.count_disconnect();
    co_return false;
  }
  if (!generation.is_stream()) {
    HttpReply reply = generation.reply();
    co_return co_await send_reply(std::move(reply));
  }
  if (chunked) {
    good = co_await write("0\r\n\r\n");
  }
  co_return good&& exchange_.keep;
}

asio::awaitable<bool> Connection::send_events_until_end(Generation& generation, bool chunked) {
  while (true) {
    wakeup_->signalled = false;
    watch();
    std::string events = generation.take();
    if (host_.expired) {
      events += generation.give_up(shutdown_error());
    }
    if (!events.empty() && !co_await send_events(std::move(events), chunked)) {
      co_return false;
    }
    if (generation.finished()) {
      co_return true;
    }
    if (!co_await wait_for_wake(generation.is_stream() && chunked)) {
      co_return false;
    }
  }
}

asio::awaitable<bool> Connection::wait_for_wake(bool as_stream) {
  const bool comments = as_stream && host_.options.keep_alive.count() > 0;
  while (!wakeup_->signalled) {
    if (comments) {
      wakeup_->timer.expires_after(host_.options.keep_alive);
    } else {
      wakeup_->timer.expires_at(Clock::time_point::max());
    }
    auto [cancelled] = co_await wakeup_->timer.async_wait(kNoThrow);
    const bool silent = !cancelled && !wakeup_->signalled;
    if (silent) {
      std::string comment = ": keep-alive\n\n";
      if (!co_await send_events(std::move(comment), true)) {
        co_return false;
      }
    }
  }
  co_return !wakeup_->gone;
}

asio::awaitable<bool> Connection::send_head(const Generation& generation) {
  http::response<http::empty_body> head(http::status::ok, exchange_.version);
  for (const auto& [name, value] : common_headers()) {
    head.set(name, value);
  }
  for (const auto& [name, value] : generation.headers()) {
    head.set(name, value);
  }
  head.set(http::field::content_type, "text/event-stream; charset=utf-8");
  head.set(http::field::cache_control, "no-cache");
  head.set("X-Accel-Buffering", "no");
  head.keep_alive(exchange_.keep);
  head.chunked(exchange_.version >= 11);
  line_.status = 200;
  const std::string bytes = text_of(head);
  co_return co_await write(bytes);
}

asio::awaitable<bool> Connection::send_events(std::string events, bool chunked) {
  line_.num_bytes += events.size();
  if (chunked) {
    events = fmt::format("{:x}\r\n{}\r\n", events.size(), events);
  }
  co_return co_await write(events);
}

// Closing a socket with unread bytes would reset the connection, and the client might not see the refusal.
asio::awaitable<void> Connection::linger(size_t most_bytes) {
  co_await say_farewell();
  error_code ignored;
  stream_.socket().shutdown(ByteSocket::shutdown_send, ignored);
  stream_.expires_after(kLingerTimeout);
  char bytes[kPiece];
  for (size_t num_bytes = 0; num_bytes < most_bytes;) {
    const ByteStream::Transfer read = co_await stream_.read_some(asio::buffer(bytes));
    if (read.error) {
      co_return;
    }
    num_bytes += read.num_bytes;
  }
}

asio::awaitable<void> Connection::say_farewell() {
  if (stream_.is_tls()) {
    stream_.expires_after(kLingerTimeout);
    co_await stream_.say_farewell();
    stream_.drop_tls();
  }
}

void Connection::log(const AccessLine& line) const {
  if (host_.options.access_log != AccessLog::kOff) {
    // A failed write to the log must not stop responses.
    (void)std::fputs(access_line(host_.options.access_log, line).c_str(), stderr);
  }
}

}  // namespace warprow
