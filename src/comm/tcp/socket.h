// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace warprow {

// A TCP socket. Reads and writes never block; the functions below wait with poll.
//
// Owns: the descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Until when start-up code waits for a socket: a time, or an abort.
struct Patience {
  std::chrono::steady_clock::time_point deadline;
  const AbortFlag* abort = nullptr;
  [[nodiscard]] bool over() const {
    return abort->raised() || std::chrono::steady_clock::now() >= deadline;
  }
};

// How a wait for a peer ended.
enum class SocketResult : uint8_t { kDone, kClosed, kGaveUp };

// Waits until the socket has one of the poll events.
bool wait_ready(const Socket& socket, short events, const Patience& patience);
SocketResult send_all(const Socket& socket,
                      std::span<const std::byte> data,
                      const Patience& patience);
SocketResult receive_all(const Socket& socket, std::span<std::byte> data, const Patience& patience);

// The longest text that is received: what ranks tell each other at start is far shorter.
inline constexpr size_t kMostText = size_t{16} << 20;

// A length and its bytes, and plain values in the host's byte order, which is little endian on every machine of ours. A
// longer text than kMostText counts as the end of the connection.
SocketResult send_string(const Socket& socket, const std::string& text, const Patience& patience);
SocketResult receive_string(const Socket& socket, std::string& text, const Patience& patience);
template <typename T>
SocketResult send_value(const Socket& socket, const T& value, const Patience& patience) {
  return send_all(socket, std::as_bytes(std::span(&value, 1)), patience);
}
template <typename T>
SocketResult receive_value(const Socket& socket, T& value, const Patience& patience) {
  return receive_all(socket, std::as_writable_bytes(std::span(&value, 1)), patience);
}

// The address of the other end, numeric.
std::string peer_address(const Socket& socket);
bool is_loopback(const std::string& address);

// One attempt to connect. `why_not` gets the reason of a failure.
Socket connect_once(const std::string& address,
                    uint16_t port,
                    const Patience& patience,
                    std::string& why_not);

// A socket that listens. Throws StartupError.
//   loopback_only  for ranks of this host alone
//   port           0: one that is free
class Listener {
 public:
  Listener(bool loopback_only, uint16_t port);

  [[nodiscard]] uint16_t port() const { return port_; }
  // The next connection; an invalid socket if the patience ends first.
  Socket accept(const Patience& patience);

 private:
  Socket socket_;
  uint16_t port_ = 0;
};

}  // namespace warprow
