// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/socket.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

namespace warprow {
namespace {

// How often a wait looks at the abort flag.
constexpr int kSocketNapMs = 20;

// Small messages leave at once, and a host that is gone is noticed after about 25 s of silence.
void set_options(int fd) {
  const auto set = [fd](int level, int name, int value) {
    ::setsockopt(fd, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses look_up(const std::string& address, uint16_t port, std::string& why_not) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    why_not = ::gai_strerror(error);
  }
  return {list, &::freeaddrinfo};
}

// Waits for the end of a connect that has begun.
int connect_error(const Socket& socket, const Patience& patience) {
  if (!wait_ready(socket, POLLOUT, patience)) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// A connect to a free port of this host may get that port as its own end and reach itself.
bool is_connected_to_itself(const Socket& socket) {
  sockaddr_storage ends[2] = {};
  socklen_t sizes[2] = {sizeof(ends[0]), sizeof(ends[1])};
  ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&ends[0]), &sizes[0]);
  ::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&ends[1]), &sizes[1]);
  return sizes[0] == sizes[1] && std::memcmp(&ends[0], &ends[1], sizes[0]) == 0;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool wait_ready(const Socket& socket, short events, const Patience& patience) {
  for (;;) {
    pollfd entry{.fd = socket.fd(), .events = events, .revents = 0};
    if (::poll(&entry, 1, kSocketNapMs) > 0) {
      return true;
    }
    if (patience.over()) {
      return false;
    }
  }
}

SocketResult send_all(const Socket& socket,
                      std::span<const std::byte> data,
                      const Patience& patience) {
  while (!data.empty()) {
    const ssize_t sent = ::send(socket.fd(), data.data(), data.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      data = data.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_ready(socket, POLLOUT, patience)) {
        return SocketResult::kGaveUp;
      }
    } else if (errno != EINTR) {
      return SocketResult::kClosed;
    }
  }
  return SocketResult::kDone;
}

SocketResult receive_all(const Socket& socket,
                         std::span<std::byte> data,
                         const Patience& patience) {
  while (!data.empty()) {
    const ssize_t received = ::recv(socket.fd(), data.data(), data.size(), 0);
    if (received > 0) {
      data = data.subspan(static_cast<size_t>(received));
    } else if (received < 0 && errno == EAGAIN) {
      if (!wait_ready(socket, POLLIN, patience)) {
        return SocketResult::kGaveUp;
      }
    } else if (received == 0 || errno != EINTR) {
      return SocketResult::kClosed;
    }
  }
  return SocketResult::kDone;
}

SocketResult send_string(const Socket& socket, const std::string& text, const Patience& patience) {
  const SocketResult result = send_value(socket, uint64_t{text.size()}, patience);
  return result != SocketResult::kDone ? result
                                       : send_all(socket, std::as_bytes(std::span(text)), patience);
}

SocketResult receive_string(const Socket& socket, std::string& text, const Patience& patience) {
  uint64_t length = 0;
  const SocketResult result = receive_value(socket, length, patience);
  if (result != SocketResult::kDone) {
    return result;
  }
  if (length > kMostText) {
    return SocketResult::kClosed;
  }
  text.resize(length);
  return receive_all(socket, std::as_writable_bytes(std::span(text)), patience);
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char text[NI_MAXHOST] = "";
  if (::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    ::getnameinfo(reinterpret_cast<sockaddr*>(&address),
                  size,
                  text,
                  sizeof(text),
                  nullptr,
                  0,
                  NI_NUMERICHOST);
  }
  return text;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.") ||
         address.starts_with("::ffff:127.");
}

Socket connect_once(const std::string& address,
                    uint16_t port,
                    const Patience& patience,
                    std::string& why_not) {
  const Addresses addresses = look_up(address, port, why_not);
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int error = errno;
    if (socket.valid()) {
      error = ::connect(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        error = connect_error(socket, patience);
      }
    }
    if (error == 0 && is_connected_to_itself(socket)) {
      error = ECONNREFUSED;
    }
    if (error == 0) {
      set_options(socket.fd());
      return socket;
    }
    why_not = std::strerror(error);
  }
  return {};
}

// One socket for IPv6 and IPv4 where the system has both.
Listener::Listener(bool loopback_only, uint16_t port) {
  sockaddr_in6 both{};
  both.sin6_family = AF_INET6;
  both.sin6_port = htons(port);
  both.sin6_addr = in6addr_any;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  four.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
  const auto listen = [this](int family, const auto& address) {
    socket_ = Socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int yes = 1;
    const int no = 0;
    ::setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (family == AF_INET6) {
      ::setsockopt(socket_.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    }
    const auto* at = reinterpret_cast<const sockaddr*>(&address);
    return socket_.valid() && ::bind(socket_.fd(), at, sizeof(address)) == 0 &&
           ::listen(socket_.fd(), SOMAXCONN) == 0;
  };
  if (loopback_only ? !listen(AF_INET, four) : !listen(AF_INET6, both) && !listen(AF_INET, four)) {
    throw StartupError(
        ErrorCode::kBusy,
        fmt::format("cannot listen for ranks on port {}: {}", port, std::strerror(errno)));
  }
  sockaddr_in6 bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&bound), &size);
  port_ = ntohs(bound.sin6_port);  // at the same place in both kinds of address
}

Socket Listener::accept(const Patience& patience) {
  while (wait_ready(socket_, POLLIN, patience)) {
    Socket socket(::accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      set_options(socket.fd());
      return socket;
    }
  }
  return {};
}

}  // namespace warprow
