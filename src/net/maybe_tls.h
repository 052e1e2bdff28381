// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include <boost/asio/async_result.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/system/error_code.hpp>

// Includes Boost: only for client/http_client.cpp and server/http/.
namespace warprow {

// A byte stream with or without TLS, as the constructor decides. So the code that reads and writes is the same for
// both. Next: a beast::basic_stream, whose time-outs apply in both cases.
//
// Owns: the underlying stream. Thread: that of its io_context; one read and one write at a time.
template <typename Next>
class MaybeTls {
 public:
  using executor_type = typename Next::executor_type;
  using error_code = boost::system::error_code;

  // context: the TLS context; nullptr: no TLS. OpenSSL keeps the parts that the stream needs. next: constructor
  // arguments of the underlying stream.
  template <typename... Arguments>
  explicit MaybeTls(boost::asio::ssl::context* context, Arguments&&... next)
      : next_(std::forward<Arguments>(next)...) {
    if (context != nullptr) {
      tls_.emplace(next_, *context);
    }
  }
  MaybeTls(const MaybeTls&) = delete;
  MaybeTls& operator=(const MaybeTls&) = delete;

  executor_type get_executor() { return next_.get_executor(); }
  Next& next() { return next_; }
  [[nodiscard]] bool is_tls() const { return tls_.has_value(); }
  // OpenSSL's session. Only with is_tls().
  SSL* session() { return tls_->native_handle(); }
  // Continues without TLS. Only while no read or write is pending.
  void drop_tls() { tls_.reset(); }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, std::size_t)>(
        [this](auto handler, const auto& into) {
          if (tls_) {
            tls_->async_read_some(into, std::move(handler));
          } else {
            next_.async_read_some(into, std::move(handler));
          }
        },
        token,
        buffers);
  }

  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, std::size_t)>(
        [this](auto handler, const auto& from) {
          if (tls_) {
            tls_->async_write_some(from, std::move(handler));
          } else {
            next_.async_write_some(from, std::move(handler));
          }
        },
        token,
        buffers);
  }

  // Only with is_tls().
  template <typename Token>
  auto async_handshake(boost::asio::ssl::stream_base::handshake_type side, Token&& token) {
    return tls_->async_handshake(side, std::forward<Token>(token));
  }

  // Sends close_notify, without waiting for the peer's. Only with is_tls(), after the last write.
  template <typename Token>
  auto async_farewell(Token&& token) {
    SSL_set_shutdown(session(), SSL_get_shutdown(session()) | SSL_RECEIVED_SHUTDOWN);
    return tls_->async_shutdown(std::forward<Token>(token));
  }

 private:
  Next next_;
  std::optional<boost::asio::ssl::stream<Next&>> tls_;
};

}  // namespace warprow
