// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/transfers.h"

#include <cerrno>
#include <sys/socket.h>
#include <utility>

namespace warprow {
namespace {

// How often a wait looks at the abort flag.
constexpr int kTransferNapMs = 20;
// Attempts before the thread sleeps: an answer from the same host or rack takes about as long as these.
constexpr int32_t kAttempts = 20;

}  // namespace

Transfers::Transfers(TcpMesh mesh, const AbortFlag& abort)
    : mesh_(std::move(mesh)),
      abort_(abort),
      outgoing_(mesh_.sockets.size()),
      incoming_(mesh_.sockets.size()),
      polled_(mesh_.sockets.size()) {}

template <typename T>
T* Transfers::Moving<T>::next() const {
  const auto row = static_cast<int64_t>(moved / block.row_bytes);
  return block.data + row * block.stride + moved % block.row_bytes;
}

void Transfers::send(int32_t member, ByteRows<const std::byte> block) {
  outgoing_[static_cast<size_t>(member)] = {block};
}

void Transfers::receive(int32_t member, ByteRows<std::byte> block) {
  incoming_[static_cast<size_t>(member)] = {block};
}

bool Transfers::send_some(size_t member) {
  auto& moving = outgoing_[member];
  const ssize_t sent = ::send(
      mesh_.sockets[member].fd(), moving.next(), moving.next_bytes(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    lost_rank_ = mesh_.ranks[member];
  }
  moving.moved += sent > 0 ? static_cast<size_t>(sent) : 0;
  return sent > 0;
}

bool Transfers::receive_some(size_t member) {
  auto& moving = incoming_[member];
  const ssize_t received =
      ::recv(mesh_.sockets[member].fd(), moving.next(), moving.next_bytes(), MSG_DONTWAIT);
  if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR)) {
    lost_rank_ = mesh_.ranks[member];
  }
  moving.moved += received > 0 ? static_cast<size_t>(received) : 0;
  return received > 0;
}

void Transfers::wait() {
  for (size_t member = 0; member < polled_.size(); ++member) {
    const int events =
        (outgoing_[member].done() ? 0 : POLLOUT) | (incoming_[member].done() ? 0 : POLLIN);
    // poll skips a negative descriptor
    polled_[member] = {.fd = events == 0 ? -1 : mesh_.sockets[member].fd(),
                       .events = static_cast<short>(events),
                       .revents = 0};
  }
  ::poll(polled_.data(), polled_.size(), kTransferNapMs);
}

bool Transfers::run() {
  for (int32_t idle = 0;;) {
    bool moved = false;
    bool done = true;
    for (size_t member = 0; member < outgoing_.size(); ++member) {
      moved |= !outgoing_[member].done() && send_some(member);
      moved |= !incoming_[member].done() && receive_some(member);
      done &= outgoing_[member].done() && incoming_[member].done();
    }
    if (lost_rank_ || abort_.raised()) {
      return false;
    }
    if (done) {
      return true;
    }
    idle = moved ? 0 : idle + 1;
    if (idle > kAttempts) {
      wait();
    }
  }
}

}  // namespace warprow
