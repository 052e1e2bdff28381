// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/abort_watch.h"

#include <cerrno>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <utility>

namespace warprow {
namespace {

// How often the thread looks at the flag.
constexpr int kWatchNapMs = 30;

enum MessageKind : uint32_t { kFarewell, kAbort };
struct AbortMessage {
  uint32_t kind = kFarewell;
  int32_t rank = 0;
  uint32_t phase = 0;
};

}  // namespace

AbortWatch::AbortWatch(TcpMesh mesh, AbortFlag& abort)
    : mesh_(std::move(mesh)), abort_(abort), gone_(mesh_.sockets.size()) {
  gone_[static_cast<size_t>(mesh_.place.rank)] = true;
  thread_ = std::thread([this] { watch(); });
  pthread_setname_np(thread_.native_handle(), "wr-abort-watch");
}

AbortWatch::~AbortWatch() {
  stop_.store(true);
  thread_.join();
  tell(abort_.raised() ? kAbort : kFarewell);
}

// A message fits into the socket's empty buffer, so it is sent as a whole or the connection is lost.
void AbortWatch::tell(uint32_t kind) {
  AbortMessage message{.kind = kind};
  if (const auto cause = abort_.cause()) {
    message.rank = cause->rank;
    message.phase = static_cast<uint32_t>(cause->phase);
  }
  for (size_t member = 0; member < gone_.size(); ++member) {
    if (!gone_[member]) {
      (void)!::send(mesh_.sockets[member].fd(), &message, sizeof(message), MSG_NOSIGNAL);
    }
  }
}

void AbortWatch::watch() {
  std::vector<pollfd> entries(gone_.size());
  bool told = false;
  while (!stop_.load()) {
    for (size_t member = 0; member < gone_.size(); ++member) {
      // poll skips a negative descriptor
      entries[member] = {
          .fd = gone_[member] ? -1 : mesh_.sockets[member].fd(), .events = POLLIN, .revents = 0};
    }
    ::poll(entries.data(), entries.size(), kWatchNapMs);
    for (size_t member = 0; member < gone_.size(); ++member) {
      if (entries[member].revents != 0) {
        listen(member);
      }
    }
    if (abort_.raised() && !std::exchange(told, true)) {
      tell(kAbort);
    }
  }
}

void AbortWatch::listen(size_t member) {
  AbortMessage message;
  const ssize_t received =
      ::recv(mesh_.sockets[member].fd(), &message, sizeof(message), MSG_PEEK | MSG_DONTWAIT);
  if (received > 0 && received < static_cast<ssize_t>(sizeof(message))) {
    return;  // the rest is on its way
  }
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  gone_[member] = true;  // only its first message counts, or the connection's end
  if (received <= 0) {
    const bool silent = received < 0 && errno != ECONNRESET;
    abort_.raise(mesh_.ranks[member],
                 silent ? AbortPhase::kConnectionLost : AbortPhase::kProcessEnded);
  } else if (message.kind == kAbort) {
    abort_.raise(message.rank, static_cast<AbortPhase>(message.phase));
  }
}

}  // namespace warprow
