// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/message_ring.h"

#include "base/check.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace warprow {
namespace {

struct Frame {
  uint64_t number;
  uint64_t num_bytes;
  uint64_t checksum;  // 0 in release builds
  uint64_t kind;
};

#ifdef NDEBUG
constexpr bool kChecked = false;
#else
constexpr bool kChecked = true;
#endif

// FNV-1a.
uint64_t checksum(std::span<const uint8_t> bytes, uint64_t hash = 0xcbf29ce484222325ULL) {
  for (const uint8_t byte : bytes) {
    hash = (hash ^ byte) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

size_t MessageRing::bytes(size_t ring_bytes, int32_t readers) {
  return (1 + static_cast<size_t>(readers)) * sizeof(ProgressWord) + ring_bytes;
}

MessageRing::MessageRing(std::byte* memory, size_t ring_bytes, int32_t readers)
    : written(reinterpret_cast<ProgressWord*>(memory)),
      read(written + 1),
      data(reinterpret_cast<std::byte*>(read + readers)),
      capacity(static_cast<uint32_t>(ring_bytes)),
      num_readers(readers) {
  WR_CHECK(std::has_single_bit(ring_bytes) && ring_bytes < (size_t{1} << 31));
}

bool RingWriter::write(uint32_t kind,
                       std::span<const uint8_t> bytes,
                       std::span<const uint8_t> more) {
  const Frame frame{
      number_++, bytes.size() + more.size(), kChecked ? checksum(more, checksum(bytes)) : 0, kind};
  if (!copy_in({reinterpret_cast<const uint8_t*>(&frame), sizeof frame}) || !copy_in(bytes) ||
      !copy_in(more)) {
    return false;
  }
  publish();
  return true;
}

// Publishes before the end only if the ring is full: a usual message becomes visible as a whole.
bool RingWriter::copy_in(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    uint32_t most = 0;  // bytes that a reader has not read
    for (int32_t reader = 0; reader < ring_.num_readers; ++reader) {
      most = std::max(most, at_ - ring_.read[reader].count());
    }
    const uint32_t room = ring_.capacity - most;
    if (room == 0) {
      publish();
      if (!wait_for_room()) {
        return false;
      }
      continue;
    }
    const uint32_t offset = at_ & (ring_.capacity - 1);
    const size_t n = std::min<size_t>({bytes.size(), room, ring_.capacity - offset});
    std::memcpy(ring_.data + offset, bytes.data(), n);
    at_ += static_cast<uint32_t>(n);
    bytes = bytes.subspan(n);
  }
  return true;
}

// Until every reader has left room for a quarter of the ring, so that a large message is not copied byte by byte.
bool RingWriter::wait_for_room() {
  for (int32_t reader = 0; reader < ring_.num_readers; ++reader) {
    if (!waiting_.until(ring_.read[reader], at_ - ring_.capacity + ring_.capacity / 4)) {
      return false;
    }
  }
  return true;
}

bool RingReader::copy_out(std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    if (!wait()) {
      return false;
    }
    const uint32_t there = ring_.written->count() - at_;
    const uint32_t offset = at_ & (ring_.capacity - 1);
    const size_t n = std::min<size_t>({bytes.size(), there, ring_.capacity - offset});
    std::memcpy(bytes.data(), ring_.data + offset, n);
    at_ += static_cast<uint32_t>(n);
    mine_.advance_to(at_);
    bytes = bytes.subspan(n);
  }
  return true;
}

bool RingReader::read(RingMessage& message) {
  Frame frame{};
  if (!copy_out({reinterpret_cast<uint8_t*>(&frame), sizeof frame})) {
    return false;
  }
  WR_CHECK_EQ(frame.number, number_++);
  message.kind = static_cast<uint32_t>(frame.kind);
  message.bytes.resize(frame.num_bytes);
  if (!copy_out(message.bytes)) {
    return false;
  }
  WR_CHECK(!kChecked || frame.checksum == checksum(message.bytes),
           "message {} was damaged on its way",
           frame.number);
  return true;
}

}  // namespace warprow
