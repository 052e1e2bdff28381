// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include <boost/asio/async_result.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/system/error_code.hpp>

// Shows Boost: for client/http_client.cpp and server/http/ alone.
namespace warprow {

// A byte stream that is encrypted or not, as is decided when it is made, so that what reads and writes
// it is written once. Next: a beast::basic_stream, whose time limits count for both.
//
// Owns: the stream below. Thread: that of its io_context; one read and one write at a time.
template <typename Next>
class MaybeTls {
 public:
  using executor_type = typename Next::executor_type;
  using error_code = boost::system::error_code;

  // context: of TLS, of which OpenSSL keeps what the stream needs; nullptr: none. next: what makes the stream below.
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
  // OpenSSL's side of it, with is_tls().
  SSL* session() { return tls_->native_handle(); }
  // From here on bytes go as they are; only while nothing is under way.
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

  // With is_tls().
  template <typename Token>
  auto async_handshake(boost::asio::ssl::stream_base::handshake_type side, Token&& token) {
    return tls_->async_handshake(side, std::forward<Token>(token));
  }

  // Says that nothing more will be sent (close_notify), without waiting for the same from the other
  // side. With is_tls(), after the last write.
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
