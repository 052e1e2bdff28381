// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/outbox.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

namespace warprow {
namespace {

// How often a wait looks at the abort flag.
constexpr std::chrono::milliseconds kOutboxNap{20};

}  // namespace

Outbox::Outbox(const TcpMesh& mesh, const AbortFlag& abort, size_t bytes_of_member)
    : abort_(abort), capacity_(bytes_of_member), ranks_(mesh.ranks) {
  for (const Socket& socket : mesh.sockets) {
    Member member;
    member.fd = socket.fd();
    if (socket.valid()) {
      member.ring = std::make_unique_for_overwrite<std::byte[]>(capacity_);
    }
    members_.push_back(std::move(member));
  }
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "wr-outbox");
}

Outbox::~Outbox() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<int32_t> Outbox::lost_rank() const {
  const std::scoped_lock lock(mutex_);
  return lost_rank_;
}

// Takes what was sent off the front of `data`.
Outbox::Sent Outbox::send_some(int fd, std::span<const std::byte>& data) {
  const ssize_t sent = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) {
    data = data.subspan(static_cast<size_t>(sent));
    return Sent::kSome;
  }
  return errno == EAGAIN || errno == EINTR ? Sent::kNothing : Sent::kLost;
}

void Outbox::keep(Member& member, std::span<const std::byte>& data) const {
  while (!data.empty() && member.size < capacity_) {
    const size_t at = (member.begin + member.size) % capacity_;
    const size_t n = std::min({data.size(), capacity_ - member.size, capacity_ - at});
    std::memcpy(member.ring.get() + at, data.data(), n);
    member.size += n;
    data = data.subspan(n);
  }
}

bool Outbox::put(int32_t member, std::span<const std::byte> data) {
  Member& to = members_[static_cast<size_t>(member)];
  std::unique_lock lock(mutex_);
  while (to.size == 0 && !data.empty() && !lost_rank_) {
    const Sent sent = send_some(to.fd, data);
    if (sent == Sent::kLost) {
      lost_rank_ = ranks_[static_cast<size_t>(member)];
    }
    if (sent != Sent::kSome) {
      break;
    }
  }
  while (!data.empty()) {
    if (lost_rank_ || abort_.raised()) {
      return false;
    }
    keep(to, data);
    changed_.notify_all();
    if (!data.empty()) {
      changed_.wait_for(lock, kOutboxNap);
    }
  }
  return !lost_rank_;
}

// Returns whether bytes were sent.
bool Outbox::send_kept(size_t index) {
  Member& member = members_[index];
  std::span<const std::byte> data(member.ring.get() + member.begin,
                                  std::min(member.size, capacity_ - member.begin));
  const size_t before = data.size();
  const Sent sent = send_some(member.fd, data);
  const size_t n = before - data.size();
  member.begin = (member.begin + n) % capacity_;
  member.size -= n;
  if (sent == Sent::kLost) {
    lost_rank_ = ranks_[index];
    member.size = 0;
  }
  return sent == Sent::kSome;
}

void Outbox::run() {
  std::vector<pollfd> waiting(members_.size());
  std::unique_lock lock(mutex_);
  while (!stop_ && !abort_.raised()) {
    bool moved = false;
    bool pending = false;
    for (size_t member = 0; member < members_.size(); ++member) {
      moved |= members_[member].size > 0 && send_kept(member);
      const bool rest = members_[member].size > 0;
      pending |= rest;
      // poll skips a negative descriptor
      waiting[member] = {.fd = rest ? members_[member].fd : -1, .events = POLLOUT, .revents = 0};
    }
    if (moved) {
      changed_.notify_all();
    } else if (!pending) {
      changed_.wait_for(lock, kOutboxNap);
    } else {
      lock.unlock();
      ::poll(waiting.data(), waiting.size(), static_cast<int>(kOutboxNap.count()));
      lock.lock();
    }
  }
}

}  // namespace warprow
