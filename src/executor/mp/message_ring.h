// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/progress_word.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace warprow {

// A message as it is read: its kind, which the two ends agree on, and its bytes.
struct RingMessage {
  uint32_t kind = 0;
  std::vector<uint8_t> bytes;
};

// Where the messages of one writer to all its readers lie in shared memory: the positions of writer and readers, and a
// ring of bytes. Messages are frames that follow each other. The writer waits where it would overwrite what the slowest
// reader still needs. A message may be larger than the ring: writer and readers then copy it in pieces, at the same
// time. Frames are numbered; in debug builds they also carry a checksum.
struct MessageRing {
  // Bytes of shared memory, which start as zeros. ring_bytes: a power of two below 2^31.
  static size_t bytes(size_t ring_bytes, int32_t readers);
  MessageRing(std::byte* memory, size_t ring_bytes, int32_t readers);

  ProgressWord* written;  // bytes since the start, modulo 2^32
  ProgressWord* read;     // [num_readers]
  std::byte* data;
  uint32_t capacity;
  int32_t num_readers;
};

// Owns: nothing; the memory and the flag outlive it. Thread: one.
class RingWriter {
 public:
  RingWriter(const MessageRing& ring, const AbortFlag& abort) : ring_(ring), waiting_(abort) {}

  // False: the engine was aborted, and the message is not complete.
  // `more` follows `bytes` in the message.
  bool write(uint32_t kind, std::span<const uint8_t> bytes, std::span<const uint8_t> more = {});

 private:
  bool copy_in(std::span<const uint8_t> bytes);
  bool wait_for_room();
  void publish() { ring_.written->advance_to(at_); }

  MessageRing ring_;
  Waiting waiting_;
  uint32_t at_ = 0;  // written, published or not
  uint64_t number_ = 0;
};

// One of the readers.
//
// Owns: nothing; the memory and the flag outlive it. Thread: one.
class RingReader {
 public:
  RingReader(const MessageRing& ring, int32_t reader, const AbortFlag& abort)
      : ring_(ring), mine_(ring.read[reader]), waiting_(abort) {}

  // Whether a message, or the begin of one, is there.
  [[nodiscard]] bool has_message() const { return ring_.written->reached(at_ + 1); }
  // Waits for that. False: the deadline passed or the engine was aborted.
  bool wait(std::optional<Waiting::Clock::time_point> deadline = {}) {
    return waiting_.until(*ring_.written, at_ + 1, deadline);
  }
  // Waits for the next message and takes it; the capacity of `message` is kept. False: the engine was aborted.
  bool read(RingMessage& message);

 private:
  bool copy_out(std::span<uint8_t> bytes);

  MessageRing ring_;
  ProgressWord& mine_;
  Waiting waiting_;
  uint32_t at_ = 0;
  uint64_t number_ = 0;
};

}  // namespace warprow
