// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/tcp/tcp_host_group.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace warprow {

// Data on its way to the members of a mesh, so that a send does not wait until a member reads. What the connection does
// not take at once is kept, up to a limit for each member, and sent by a thread.
//
// Owns: the memory and the thread. What has not been sent at the end is dropped.
// Thread: one puts. Nothing is allocated after construction.
class Outbox {
 public:
  // The sockets of `mesh` outlive it.
  Outbox(const TcpMesh& mesh, const AbortFlag& abort, size_t bytes_of_member);
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Waits only while there is no room. False: the engine was aborted, or a connection was lost (lost_rank).
  bool put(int32_t member, std::span<const std::byte> data);
  [[nodiscard]] std::optional<int32_t> lost_rank() const;

 private:
  struct Member {
    int fd = -1;  // of this rank: none
    std::unique_ptr<std::byte[]> ring;
    size_t begin = 0;  // of the kept bytes
    size_t size = 0;
  };
  enum class Sent : uint8_t { kSome, kNothing, kLost };

  static Sent send_some(int fd, std::span<const std::byte>& data);
  bool send_kept(size_t member);
  void keep(Member& member, std::span<const std::byte>& data) const;
  void run();

  const AbortFlag& abort_;
  size_t capacity_;
  std::vector<int32_t> ranks_;  // by member
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::optional<int32_t> lost_rank_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace warprow
