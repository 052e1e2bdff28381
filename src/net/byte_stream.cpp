// SPDX-License-Identifier: Apache-2.0
#include "net/byte_stream.h"

#include <optional>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/basic_stream.hpp>

namespace warprow {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);

}  // namespace

struct ByteStream::Layers {
  Layers(asio::ssl::context* context, ByteSocket from) : socket(std::move(from)) {
    if (context != nullptr) {
      tls.emplace(socket, *context);
    }
  }
  beast::basic_stream<ByteProtocol> socket;  // with time-outs
  std::optional<asio::ssl::stream<beast::basic_stream<ByteProtocol>&>> tls;
};

ByteStream::ByteStream(asio::ssl::context* tls, ByteSocket socket)
    : layers_(std::make_unique<Layers>(tls, std::move(socket))) {}

ByteStream::~ByteStream() = default;

bool ByteStream::is_tls() const { return layers_->tls.has_value(); }

ssl_st* ByteStream::session() { return layers_->tls->native_handle(); }

void ByteStream::drop_tls() { layers_->tls.reset(); }

void ByteStream::expires_at(Clock::time_point time) { layers_->socket.expires_at(time); }

void ByteStream::expires_after(Clock::duration time) { layers_->socket.expires_after(time); }

void ByteStream::expires_never() { layers_->socket.expires_never(); }

void ByteStream::cancel() { layers_->socket.cancel(); }

ByteSocket& ByteStream::socket() { return layers_->socket.socket(); }

asio::awaitable<ByteStream::Error> ByteStream::connect(ByteProtocol::endpoint endpoint) {
  auto [error] = co_await layers_->socket.async_connect(endpoint, kNoThrow);
  co_return error;
}

asio::awaitable<ByteStream::Error> ByteStream::accept_tls() {
  auto [error] = co_await layers_->tls->async_handshake(asio::ssl::stream_base::server, kNoThrow);
  co_return error;
}

asio::awaitable<ByteStream::Error> ByteStream::connect_tls() {
  auto [error] = co_await layers_->tls->async_handshake(asio::ssl::stream_base::client, kNoThrow);
  co_return error;
}

asio::awaitable<void> ByteStream::say_farewell() {
  SSL_set_shutdown(session(), SSL_get_shutdown(session()) | SSL_RECEIVED_SHUTDOWN);
  co_await layers_->tls->async_shutdown(kNoThrow);
}

asio::awaitable<ByteStream::Transfer> ByteStream::read_some(asio::mutable_buffer into) {
  if (is_tls()) {
    auto [error, num_bytes] = co_await layers_->tls->async_read_some(into, kNoThrow);
    co_return Transfer{error, num_bytes};
  }
  auto [error, num_bytes] = co_await layers_->socket.async_read_some(into, kNoThrow);
  co_return Transfer{error, num_bytes};
}

void ByteStream::read_some(asio::mutable_buffer into, std::function<void(Transfer)> then) {
  auto handler = [then = std::move(then)](const Error& error, size_t num_bytes) {
    then({error, num_bytes});
  };
  if (is_tls()) {
    layers_->tls->async_read_some(into, std::move(handler));
  } else {
    layers_->socket.async_read_some(into, std::move(handler));
  }
}

asio::awaitable<ByteStream::Error> ByteStream::write(std::string_view bytes,
                                                     Clock::duration silence) {
  Error error;
  while (!bytes.empty() && !error) {
    layers_->socket.expires_after(silence);
    const asio::const_buffer from(bytes.data(), bytes.size());
    size_t num_written = 0;
    if (is_tls()) {
      std::tie(error, num_written) = co_await layers_->tls->async_write_some(from, kNoThrow);
    } else {
      std::tie(error, num_written) = co_await layers_->socket.async_write_some(from, kNoThrow);
    }
    bytes.remove_prefix(num_written);
  }
  co_return error;
}

}  // namespace warprow
