// SPDX-License-Identifier: Apache-2.0
#include "executor/external/rank_link.h"

#include "wire/serialize.h"

#include <algorithm>
#include <cstring>
#include <poll.h>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMagic = 0x6b6e6c77;  // "wlnk"

struct Header {
  uint32_t magic;
  uint32_t kind;
  uint64_t num_bytes;
  uint64_t checksum;
};

// Memory is taken as the bytes arrive, so that a wrong length costs none.
constexpr size_t kPiece = size_t{1} << 20;

// Until the abort flag.
Patience endless(const AbortFlag& abort) {
  return {Clock::now() + std::chrono::hours(24 * 365), &abort};
}

}  // namespace

bool RankLink::send(uint32_t kind, std::span<const uint8_t> bytes) {
  const Header header{kMagic, kind, bytes.size(), payload_checksum(bytes)};
  frame_.resize(sizeof header + bytes.size());
  std::memcpy(frame_.data(), &header, sizeof header);
  if (!bytes.empty()) {
    std::memcpy(frame_.data() + sizeof header, bytes.data(), bytes.size());
  }
  return bytes.size() <= kMostBytes &&
         send_all(socket_, std::as_bytes(std::span(frame_)), endless(abort_)) ==
             SocketResult::kDone;
}

RankLink::Received RankLink::receive(RingMessage& message, Clock::time_point deadline) {
  if (!wait_ready(socket_, POLLIN, {deadline, &abort_})) {
    return Received::kNothing;
  }
  const auto ended = [](SocketResult result) {
    return result == SocketResult::kClosed ? Received::kClosed : Received::kNothing;
  };
  const Patience patience = endless(abort_);
  Header header{};
  if (const SocketResult result = receive_value(socket_, header, patience);
      result != SocketResult::kDone) {
    return ended(result);
  }
  if (header.magic != kMagic || header.num_bytes > kMostBytes) {
    return Received::kDamaged;
  }
  message.kind = header.kind;
  message.bytes.clear();
  while (message.bytes.size() < header.num_bytes) {
    const size_t at = message.bytes.size();
    message.bytes.resize(std::min<size_t>(at + kPiece, header.num_bytes));
    const SocketResult result = receive_all(
        socket_, std::as_writable_bytes(std::span(message.bytes).subspan(at)), patience);
    if (result != SocketResult::kDone) {
      return ended(result);
    }
  }
  return payload_checksum(message.bytes) == header.checksum ? Received::kMessage
                                                            : Received::kDamaged;
}

}  // namespace warprow
