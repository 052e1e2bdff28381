// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

namespace warprow {

// The device memory that captured graphs may take, and what of it they take. A driver hands graphs
// memory in chunks that several share, and keeps what a destroyed graph leaves for the next one. So
// one number follows what the device has left, and another the room that destroyed graphs left.
//
// Thread: the runner's.
// Invariant: a capture that would exceed the reservation if it took as much as the largest of its
// kind so far is not begun.
class GraphReservation {
 public:
  enum Kind : uint8_t { kForward, kSample };

  // forward_bytes, sample_bytes: what a capture is expected to take until one has taken more.
  GraphReservation(int64_t reserved_bytes, int64_t forward_bytes, int64_t sample_bytes)
      : reserved_bytes_(reserved_bytes), largest_{forward_bytes, sample_bytes} {}

  // Bytes that graphs must leave before a capture of this kind may begin; 0: it may; kNever: it may
  // not whatever leaves, since the last capture took more than expected and went beyond the
  // reservation.
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  [[nodiscard]] int64_t shortage(Kind kind) const {
    if (bytes_ > reserved_bytes_) {
      return kNever;
    }
    const int64_t beyond_vacant = std::max<int64_t>(0, largest_[kind] - vacant_bytes_);
    return std::max<int64_t>(0, bytes_ + beyond_vacant - reserved_bytes_);
  }

  // A capture took `taken` bytes of the device. Returns what counts as its own: these, and the room of
  // destroyed graphs that it used instead.
  int64_t note_capture(Kind kind, int64_t taken) {
    const int64_t reused = std::min(vacant_bytes_, std::max<int64_t>(0, largest_[kind] - taken));
    largest_[kind] = std::max(largest_[kind], taken);
    vacant_bytes_ -= reused;
    bytes_ += taken;
    return taken + reused;
  }

  // Graphs that counted `bytes` are gone; the device has `given_back` more than before.
  void note_destroyed(int64_t bytes, int64_t given_back) {
    given_back = std::clamp<int64_t>(given_back, 0, bytes_);
    bytes_ -= given_back;
    vacant_bytes_ = std::min(bytes_, vacant_bytes_ + std::max<int64_t>(0, bytes - given_back));
  }

  [[nodiscard]] int64_t reserved_bytes() const { return reserved_bytes_; }
  // What graphs took of the device and did not give back.
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  int64_t reserved_bytes_;
  std::array<int64_t, 2> largest_;  // by kind
  int64_t bytes_ = 0;
  int64_t vacant_bytes_ = 0;  // of bytes_, room that destroyed graphs left in the driver
};

}  // namespace warprow
