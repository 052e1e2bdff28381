// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/system/error_code.hpp>

namespace boost::asio::ssl {
class context;  // NOLINT(readability-identifier-naming): Boost's name
}
struct ssl_st;  // OpenSSL's SSL

// Includes Boost: only for client/http_client.cpp and server/http/.
namespace warprow {

using ByteProtocol = boost::asio::generic::stream_protocol;  // TCP or Unix
using ByteSocket = boost::asio::basic_stream_socket<ByteProtocol>;

// A socket with or without TLS, as the constructor decides, so that the code that reads and writes is the same for
// both. Its operations are compiled once: each one, over TLS and over a plain socket, takes seconds to compile.
//
// Owns: the socket. Thread: that of its io_context; one read and one write at a time. Errors: beast::error::timeout
// after a time-out, asio::error::operation_aborted after cancel().
class ByteStream {
 public:
  using Error = boost::system::error_code;
  using Clock = std::chrono::steady_clock;
  template <typename T>
  using Task = boost::asio::awaitable<T>;
  struct Transfer {
    Error error;
    size_t num_bytes = 0;
  };

  // tls: the TLS context; nullptr: no TLS. OpenSSL keeps the parts that the stream needs.
  ByteStream(boost::asio::ssl::context* tls, ByteSocket socket);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  [[nodiscard]] bool is_tls() const;
  // OpenSSL's session. Only with is_tls().
  [[nodiscard]] ssl_st* session();
  // Continues without TLS. Only while no read or write is pending.
  void drop_tls();

  // The time-out of the operations that are pending and of those that follow.
  void expires_at(Clock::time_point time);
  void expires_after(Clock::duration time);
  void expires_never();
  // Ends pending operations with an error.
  void cancel();
  [[nodiscard]] ByteSocket& socket();

  Task<Error> connect(ByteProtocol::endpoint endpoint);
  // TLS handshakes. Only with is_tls().
  Task<Error> accept_tls();
  Task<Error> connect_tls();
  // Sends close_notify, without waiting for the peer's. Only with is_tls(), after the last write.
  Task<void> say_farewell();

  // Waits for at least one byte. At the end of the stream: asio::error::eof, or another error over TLS.
  Task<Transfer> read_some(boost::asio::mutable_buffer into);
  // The same, which calls `then` at the end.
  void read_some(boost::asio::mutable_buffer into, std::function<void(Transfer)> then);
  // Writes all bytes. silence: the longest time without progress.
  Task<Error> write(std::string_view bytes, Clock::duration silence);

 private:
  struct Layers;
  std::unique_ptr<Layers> layers_;
};

}  // namespace warprow
