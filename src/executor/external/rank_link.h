// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/tcp/socket.h"
#include "executor/mp/message_ring.h"

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace warprow {

// Messages between rank 0 and another rank over TCP, those of the rings (message_ring.h) and a few more. Each has a
// header with its kind, its length, which is bounded, and a checksum of its bytes. All are checked before a message is
// used.
//
// Owns: the socket.
// Thread: one sends and one receives.
class RankLink {
 public:
  // The longest message. A step with a prompt of a million tokens has about 4 MiB.
  static constexpr size_t kMostBytes = size_t{256} << 20;

  RankLink(Socket socket, const AbortFlag& abort) : socket_(std::move(socket)), abort_(abort) {}

  // Waits as long as the peer needs to take it. False: the connection is lost, or the engine was aborted.
  bool send(uint32_t kind, std::span<const uint8_t> bytes);

  enum class Received : uint8_t {
    kMessage,
    kNothing,  // until the deadline, or before the engine was aborted
    kClosed,
    kDamaged,  // what came is no message
  };
  // Waits for a message until the deadline; one that has begun may take longer. The capacity of `message` is kept.
  Received receive(RingMessage& message, std::chrono::steady_clock::time_point deadline);

 private:
  Socket socket_;
  const AbortFlag& abort_;
  std::vector<uint8_t> frame_;  // header and bytes being sent
};

}  // namespace warprow
