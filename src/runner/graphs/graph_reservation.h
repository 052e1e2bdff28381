// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

namespace warprow {

// The device memory that captured graphs may take, and how much of it they use. A driver allocates graph memory in
// chunks that several graphs share, and keeps the memory of a destroyed graph for the next one. So one count
// follows the device's free memory, and another counts the room that destroyed graphs left in the driver.
//
// Thread: the runner's.
// Invariant: a capture is not begun if it would exceed the reservation by taking as much as the largest capture of
// its kind so far.
class GraphReservation {
 public:
  enum Kind : uint8_t { kForward, kSample };

  // forward_bytes, sample_bytes: the expected size of a capture until one has taken more.
  GraphReservation(int64_t reserved_bytes, int64_t forward_bytes, int64_t sample_bytes)
      : reserved_bytes_(reserved_bytes), largest_{forward_bytes, sample_bytes} {}

  // Bytes of graphs that must be destroyed before a capture of this kind may begin. 0: it may begin now. kNever: it
  // may not begin whatever is destroyed, because the last capture took more than expected and exceeded the
  // reservation.
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  [[nodiscard]] int64_t shortage(Kind kind) const {
    if (bytes_ > reserved_bytes_) {
      return kNever;
    }
    const int64_t beyond_vacant = std::max<int64_t>(0, largest_[kind] - vacant_bytes_);
    return std::max<int64_t>(0, bytes_ + beyond_vacant - reserved_bytes_);
  }

  // A capture took `taken` bytes of the device. Returns the bytes charged to it: these, and the room of destroyed
  // graphs that it reused.
  int64_t note_capture(Kind kind, int64_t taken) {
    const int64_t reused = std::min(vacant_bytes_, std::max<int64_t>(0, largest_[kind] - taken));
    largest_[kind] = std::max(largest_[kind], taken);
    vacant_bytes_ -= reused;
    bytes_ += taken;
    return taken + reused;
  }

  // Graphs that were charged `bytes` are destroyed; the device has `given_back` more free bytes than before.
  void note_destroyed(int64_t bytes, int64_t given_back) {
    given_back = std::clamp<int64_t>(given_back, 0, bytes_);
    bytes_ -= given_back;
    vacant_bytes_ = std::min(bytes_, vacant_bytes_ + std::max<int64_t>(0, bytes - given_back));
  }

  [[nodiscard]] int64_t reserved_bytes() const { return reserved_bytes_; }
  // Bytes that graphs took from the device and did not return.
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  int64_t reserved_bytes_;
  std::array<int64_t, 2> largest_;  // by kind
  int64_t bytes_ = 0;
  int64_t vacant_bytes_ = 0;  // the part of bytes_ that destroyed graphs left in the driver
};

}  // namespace warprow
