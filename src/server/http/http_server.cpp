// SPDX-License-Identifier: Apache-2.0
#include "server/http/http_server.h"

#include "base/log.h"
#include "server/http/connection.h"
#include "server/http/connection_limits.h"
#include "server/http/file_reload.h"
#include "server/response/api_error.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <malloc.h>
#include <optional>
#include <set>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "net/file_limit.h"
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

namespace warprow {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::seconds;

constexpr auto kAcceptNoThrow = asio::as_tuple(asio::use_awaitable);
constexpr seconds kLookAtFiles{1};  // interval of checks for changed certificate and key files
constexpr seconds kIdleBeforeTrim{2};
constexpr std::chrono::milliseconds kLookAtEngine{500};
constexpr std::chrono::milliseconds kAfterEngineFailure{4000};
constexpr seconds kLastWrites{2};  // for the last writes to clients after shutdown_timeout

Result<void> check_limits(const HttpOptions& options) {
  // Bodies have half of the budget, and a chunked body counts up to twice its size.
  constexpr uint64_t kFewestBodies = 4;
  if (options.max_buffered_bytes < kFewestBodies * options.max_body_bytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--max-buffered-bytes: {} is less than four times --max-body-bytes, {}",
                            options.max_buffered_bytes,
                            options.max_body_bytes));
  }
  if (!options.uds.empty() && !options.allowed_hosts.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "--allowed-hosts has no meaning with --uds, where any name is answered");
  }
  return {};
}

// A flag that needs another flag is an error without it; it is not ignored.
Result<void> check_flags(const TlsServerOptions& tls) {
  using ClientCertificate = TlsServerOptions::ClientCertificate;
  const bool asks_clients =
      tls.client_certificate.value_or(ClientCertificate::kIgnored) != ClientCertificate::kIgnored;
  if (asks_clients && tls.ca_file.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--ssl-cert-reqs 1 and 2 need --ssl-ca-certs");
  }
  if (!tls.certificate_file.empty()) {
    return {};
  }
  for (const auto& [flag, value] : {std::pair("ssl-keyfile", tls.key_file),
                                    std::pair("ssl-keyfile-password", tls.key_password),
                                    std::pair("ssl-ca-certs", tls.ca_file)}) {
    if (!value.empty()) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("--{} needs --ssl-certfile", flag));
    }
  }
  return {};
}

using FileId = std::pair<dev_t, ino_t>;

// The id of the Unix socket at this path. nullopt if no file or another kind of file is there.
std::optional<FileId> socket_at(const std::string& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) {
    return std::nullopt;
  }
  return FileId(status.st_dev, status.st_ino);
}

class BeastServer final : public HttpServer {
 public:
  explicit BeastServer(const HttpOptions& options)
      : options_(options),
        acceptor_(io_),
        signals_(io_),
        hangups_(io_, SIGHUP),
        look_timer_(io_),
        trim_timer_(io_),
        engine_timer_(io_),
        drain_timer_(io_),
        limits_(options.max_connections, options.max_connections_per_address),
        pool_(options.max_waiting_texts, options.max_waiting_texts_per_client) {}
  ~BeastServer() override { stop_listening(); }

  Result<void> load_certificate();
  Result<void> listen_at_address();
  [[nodiscard]] bool is_local() const override {
    return !options_.uds.empty() || tcp_endpoint().address().is_loopback();
  }
  void run(Api& api, const std::function<void(const std::string& url)>& on_ready) override;

 private:
  error_code listen_at(const ByteProtocol::endpoint& endpoint, bool reuse);
  error_code listen_at_path();
  void stop_listening();
  [[nodiscard]] tcp::endpoint tcp_endpoint() const;  // only without a Unix socket
  [[nodiscard]] std::string url() const;
  [[nodiscard]] HostRule host_rule(const Api& api) const;
  asio::awaitable<void> accept_connections();
  asio::awaitable<void> serve(ByteSocket socket, ClientAddress client);
  void turn_away(ByteSocket& socket);
  void count_connections();
  void wait_for_signal();
  void watch_files();
  void wait_for_hangup();
  void look_at_files();
  void trim_heap_when_idle();
  void watch_engine();
  void drain();
  void give_up_answers();
  void end_if_drained();

  HttpOptions options_;
  TlsContext tls_;  // empty: plain HTTP
  asio::io_context io_{1};
  asio::basic_socket_acceptor<ByteProtocol> acceptor_;
  asio::signal_set signals_;
  asio::signal_set hangups_;  // while this exists, SIGHUP does not end the process
  std::vector<FileReload> reloads_;
  asio::steady_timer look_timer_;
  asio::steady_timer trim_timer_;
  asio::steady_timer engine_timer_;
  asio::steady_timer drain_timer_;
  std::atomic<bool> expired_ = false;
  std::optional<ConnectionHost> host_;  // while it runs
  std::set<Connection*> connections_;
  std::optional<FileId> own_socket_;  // at options_.uds
  ConnectionLimits limits_;
  AnswerPool pool_;  // destroyed first: its jobs use the other members
};

error_code BeastServer::listen_at(const ByteProtocol::endpoint& endpoint, bool reuse) {
  error_code error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error && reuse) {
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  }
  if (!error) {
    acceptor_.bind(endpoint, error);
  }
  if (!error) {
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
  }
  return error;
}

// A Unix socket without a listener is stale and is replaced.
error_code BeastServer::listen_at_path() {
  const asio::local::stream_protocol::endpoint endpoint(options_.uds);
  error_code error = listen_at(endpoint, false);
  if (error == asio::error::address_in_use && socket_at(options_.uds)) {
    asio::local::stream_protocol::socket probe(io_);
    error_code refused;
    probe.connect(endpoint, refused);
    if (refused == asio::error::connection_refused) {
      unlink(options_.uds.c_str());
      error_code ignored;
      acceptor_.close(ignored);
      error = listen_at(endpoint, false);
    }
  }
  if (!error) {
    own_socket_ = socket_at(options_.uds);
  }
  return error;
}

// Remove the path before closing the socket: after the close another server could bind the same path.
void BeastServer::stop_listening() {
  if (own_socket_ && socket_at(options_.uds) == own_socket_) {
    unlink(options_.uds.c_str());
  }
  own_socket_.reset();
  error_code ignored;
  acceptor_.close(ignored);
}

Result<void> BeastServer::load_certificate() {
  const TlsServerOptions& tls = options_.tls;
  Result<void> good = check_flags(tls);
  if (!good || tls.certificate_file.empty()) {
    return good;
  }
  return server_tls_context(tls).map([this](TlsContext made) { tls_ = std::move(made); });
}

Result<void> BeastServer::listen_at_address() {
  raise_file_limit();
  if (!options_.uds.empty()) {
    constexpr size_t kLongestPath = 107;  // of sockaddr_un
    if (options_.uds.size() > kLongestPath) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--uds: the path is longer than {} bytes", kLongestPath));
    }
    const error_code error = listen_at_path();
    return error ? fail(ErrorCode::kInvalidArgument,
                        fmt::format("--uds {}: {}", options_.uds, error.message()))
                 : Result<void>();
  }
  error_code error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(options_.host, std::to_string(options_.port), error);
  if (!error && !found.empty()) {
    error = listen_at(found.begin()->endpoint(), true);
  }
  if (error) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--host {} --port {}: {}", options_.host, options_.port, error.message()));
  }
  return {};
}

tcp::endpoint BeastServer::tcp_endpoint() const {
  tcp::endpoint local;
  const ByteProtocol::endpoint bound = acceptor_.local_endpoint();
  local.resize(bound.size());
  std::memcpy(local.data(), bound.data(), bound.size());
  return local;
}

// The host name of --host is always allowed.
HostRule BeastServer::host_rule(const Api& api) const {
  HostRule rule{.guarded = false, .allowed = options_.allowed_hosts};
  rule.guarded =
      options_.uds.empty() && (!options_.allowed_hosts.empty() || (!api.needs_key() && is_local()));
  if (const std::optional<std::string> own = host_name(options_.host)) {
    rule.allowed.push_back(*own);
  }
  return rule;
}

std::string BeastServer::url() const {
  if (!options_.uds.empty()) {
    return "unix:" + options_.uds;
  }
  const tcp::endpoint local = tcp_endpoint();
  const std::string address = local.address().to_string();
  const char* scheme = tls_ ? "https" : "http";
  return local.address().is_v6() ? fmt::format("{}://[{}]:{}", scheme, address, local.port())
                                 : fmt::format("{}://{}:{}", scheme, address, local.port());
}

void BeastServer::run(Api& api, const std::function<void(const std::string& url)>& on_ready) {
  host_.emplace(
      ConnectionHost{.options = options_,
                     .io = io_,
                     .pool = pool_,
                     .api = api,
                     .expired = expired_,
                     .host_rule = host_rule(api),
                     .bars_foreign_pages = !api.needs_key() && is_local() && options_.uds.empty(),
                     .tls = tls_.get(),
                     .memory = MemoryBudget(options_.max_buffered_bytes)});
  if (!api.needs_key() && !is_local()) {
    WR_LOG_WARN("no --api-key: whoever reaches {} can use this server", url());
  }
  signals_.add(SIGINT);
  signals_.add(SIGTERM);
  wait_for_signal();
  watch_files();
  watch_engine();
  asio::co_spawn(io_, accept_connections(), [](const std::exception_ptr&) {});
  on_ready(url());
  io_.run();
  error_code ignored;
  signals_.clear(ignored);  // from now on a signal ends the process, even if the engine waits
}

void BeastServer::wait_for_signal() {
  signals_.async_wait([this](const error_code& error, int number) {
    if (error) {
      return;
    }
    if (host_->draining) {
      std::_Exit(128 + number);
    }
    wait_for_signal();
    drain();
  });
}

// Reads all files once at the beginning: they may have changed since start-up.
void BeastServer::watch_files() {
  const TlsServerOptions& tls = options_.tls;
  if (tls_) {
    std::vector<std::string> paths{tls.certificate_file, tls.key_file, tls.ca_file};
    std::erase(paths, "");
    reloads_.emplace_back("the certificate", std::move(paths), [this] {
      return load_certificate().map([this] { host_->tls = tls_.get(); });
    });
  }
  ApiKeys& keys = host_->api.keys();
  if (!keys.paths().empty()) {
    reloads_.emplace_back("--api-key-file", keys.paths(), [&keys] { return keys.read_again(); });
  }
  for (FileReload& reload : reloads_) {
    reload.read_now();
  }
  wait_for_hangup();
  if (!reloads_.empty()) {
    look_at_files();
  }
}

void BeastServer::wait_for_hangup() {
  hangups_.async_wait([this](const error_code& error, int /*number*/) {
    if (error || host_->closing) {
      return;
    }
    if (reloads_.empty()) {
      WR_LOG_WARN("SIGHUP: no certificate and no --api-key-file to read again; nothing is done");
    }
    for (FileReload& reload : reloads_) {
      reload.read_now();
    }
    wait_for_hangup();
  });
}

void BeastServer::look_at_files() {
  look_timer_.expires_after(kLookAtFiles);
  look_timer_.async_wait([this](const error_code& error) {
    if (error || host_->closing) {
      return;
    }
    for (FileReload& reload : reloads_) {
      reload.look();
    }
    look_at_files();
  });
}

// Returns free memory to the kernel some seconds after the last connection closed: what a burst of requests left in
// the heaps of the threads that served it.
void BeastServer::trim_heap_when_idle() {
  trim_timer_.expires_after(kIdleBeforeTrim);
  trim_timer_.async_wait([this](const error_code& error) {
    if (!error && connections_.empty()) {
      malloc_trim(0);
    }
  });
}

// An engine that has failed does not come back. Probes can read why for a while; then the server ends.
void BeastServer::watch_engine() {
  const bool failed = !host_->api.engine_failure().empty();
  engine_timer_.expires_after(failed ? kAfterEngineFailure : kLookAtEngine);
  engine_timer_.async_wait([this, failed](const error_code& error) {
    if (error || host_->closing) {
      return;
    }
    if (failed) {
      WR_LOG_ERROR("the engine has failed; the server ends");
      drain();
    } else {
      watch_engine();
    }
  });
}

// Probes and dashboards get responses until the end. Connections without a request close after the last answer.
void BeastServer::drain() {
  host_->draining = true;
  host_->api.watch().draining = true;
  drain_timer_.expires_after(options_.shutdown_timeout);
  drain_timer_.async_wait([this](const error_code& error) {
    if (!error) {
      give_up_answers();
    }
  });
  end_if_drained();
}

void BeastServer::give_up_answers() {
  expired_ = true;
  for (Connection* connection : connections_) {
    connection->wake();
  }
  drain_timer_.expires_after(kLastWrites);
  drain_timer_.async_wait([this](const error_code& error) {
    if (!error) {
      WR_LOG_WARN("{} connections did not end in time and are cut", connections_.size());
      for (Connection* connection : connections_) {
        connection->cancel();
      }
    }
  });
}

void BeastServer::end_if_drained() {
  const auto busy = [](const Connection* connection) { return connection->busy(); };
  if (!host_->draining || std::any_of(connections_.begin(), connections_.end(), busy)) {
    return;
  }
  host_->closing = true;
  stop_listening();
  if (connections_.empty()) {
    signals_.cancel();
    hangups_.cancel();
    look_timer_.cancel();
    trim_timer_.cancel();
    engine_timer_.cancel();
    drain_timer_.cancel();
  }
  for (Connection* connection : connections_) {
    connection->cancel();
  }
}

void BeastServer::count_connections() {
  host_->api.watch().metrics.set_connections(static_cast<int64_t>(connections_.size()));
}

asio::awaitable<void> BeastServer::accept_connections() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(kAcceptNoThrow);
    if (!error) {
      error_code ignored;
      if (options_.uds.empty()) {
        socket.set_option(tcp::no_delay(true), ignored);
      }
      ClientAddress client = client_address(socket);
      if (!limits_.enter(client.group, client.is_local)) {
        turn_away(socket);
        continue;
      }
      asio::co_spawn(
          io_, serve(std::move(socket), std::move(client)), [](const std::exception_ptr& failure) {
            if (failure) {
              WR_LOG_ERROR("a connection ended with an exception");
            }
          });
    } else if (acceptor_.is_open()) {  // probably out of file descriptors
      WR_LOG_WARN("cannot accept a connection: {}", error.message());
      asio::steady_timer pause(io_, std::chrono::milliseconds(100));
      co_await pause.async_wait(kAcceptNoThrow);
    }
  }
}

// Does not wait, so that many refused connections cost little. Over TLS the connection closes without a reply.
void BeastServer::turn_away(ByteSocket& socket) {
  host_->api.watch().metrics.count_http("other", 503);
  error_code ignored;
  if (!tls_) {
    const HttpReply reply = overload_reply("there are too many connections");
    const std::string answer = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: {}\r\nRetry-After: 1\r\nConnection: "
        "close\r\n"
        "Content-Length: {}\r\n\r\n{}",
        reply.content_type,
        reply.body.size(),
        reply.body);
    (void)::send(socket.native_handle(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    socket.shutdown(ByteSocket::shutdown_send, ignored);
  }
  socket.close(ignored);
}

asio::awaitable<void> BeastServer::serve(ByteSocket socket, ClientAddress client) {
  // Keeps the connection registered until the coroutine ends, in whatever way.
  struct Registered {
    Registered(BeastServer& server, ByteSocket socket, ClientAddress& address)
        : owner(server), client(address), connection(*server.host_, std::move(socket), address) {
      owner.connections_.insert(&connection);
      owner.count_connections();
    }
    ~Registered() {
      owner.connections_.erase(&connection);
      owner.limits_.leave(client.group);
      owner.count_connections();
      if (owner.connections_.empty() && !owner.host_->closing) {
        owner.trim_heap_when_idle();
      }
      owner.end_if_drained();
    }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
    BeastServer& owner;
    const ClientAddress& client;
    Connection connection;
  };
  Registered registered(*this, std::move(socket), client);
  co_await registered.connection.serve();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options) {
  auto server = std::make_unique<BeastServer>(options);
  const Result<void> begun =
      check_limits(options).and_then([&] { return server->load_certificate(); }).and_then([&] {
        return server->listen_at_address();
      });
  if (!begun) {
    return tl::unexpected(begun.error());
  }
  return server;
}

}  // namespace warprow
