// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"

#include <array>
#include <cstdint>
#include <type_traits>

namespace warprow {

// The latest outputs of all requests, to be searched for the last tokens of a row. Device memory of a CPU; a copy refers
// to the same memory.
//
// Outputs are stored in segments of a ring. A row fills one segment after the other, and the oldest segment is used
// again. Only the outputs of the latest max_requests requests are found. A token's place is a number that grows by one
// for each cell of the ring and wraps at 2^32. For each place and key length, `links` has the place before it with the
// same hash of its last tokens, and `heads` the latest place of a hash, as in LZ77 compressors. Heads and links are
// hints: they must lead to a place that is still in the ring, a reader compares the tokens, and it visits a limited
// number of places.
//
// Owns: nothing; its arrays lie in the arena, and `counters` must be zero before the first use.
// Thread: begin_request and add one at a time, in a fixed order of the rows. The others from several threads at once, but
// not during an add.
class OutputIndex {
 public:
  using Place = uint32_t;
  static constexpr Place kNone = 0;
  static constexpr int32_t kSegment = 32;
  static constexpr int32_t kMaxTokens = 1 << 20;
  static constexpr std::array<int32_t, 4> kKeyLens = {8, 4, 2, 1};

  struct Counters {
    uint32_t next = 0;          // the first place of the next segment
    uint32_t num_cells = 0;     // behind it that are in use, at most the capacity
    uint32_t num_requests = 0;  // begun
  };

  OutputIndex() = default;
  // An index of max_requests requests of max_len tokens each, kMaxTokens together. 0 requests: it stores nothing.
  OutputIndex(Arena& arena, int32_t max_num_seqs, int32_t max_requests, int32_t max_len);

  [[nodiscard]] bool is_on() const { return max_requests_ > 0; }
  [[nodiscard]] uint32_t capacity() const { return capacity_; }
  [[nodiscard]] Counters* counters() const { return counters_; }

  // The row has a new request.
  void begin_request(int32_t row) const;
  // Adds an output to the row's request. Does nothing once so many requests began after it that it does not count.
  void add(int32_t row, int32_t token) const;

  // The hash of one token more than `hash` has; 0: of none.
  [[nodiscard]] static uint32_t mix(uint32_t hash, int32_t token) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B1U;
    return hash ^ (hash >> 15);
  }
  // Where the last kKeyLens[key] tokens probably have this hash, latest first; kNone: no further place. A place may
  // belong to a request that does not count any more.
  [[nodiscard]] Place latest(size_t key, uint32_t hash) const;
  [[nodiscard]] Place before(size_t key, Place place) const;

  [[nodiscard]] bool counts(Place place) const;
  [[nodiscard]] int32_t token(Place place) const { return tokens_[cell(place)]; }
  // The place behind or in front of this one in the same request; kNone: there is none.
  [[nodiscard]] Place next(Place place) const;
  [[nodiscard]] Place previous(Place place) const;

 private:
  struct Segment {
    uint32_t request = 0;
    Place next = kNone;      // the request's next segment
    Place previous = kNone;  // the one before, which is full
    int32_t num_toks = 0;
  };
  struct Row {
    uint32_t request = 0;
    Place last = kNone;  // of its outputs
  };

  [[nodiscard]] uint32_t cell(Place place) const { return place & (capacity_ - 1); }
  [[nodiscard]] Segment& segment(Place place) const {
    return segments_[cell(place) / static_cast<uint32_t>(kSegment)];
  }
  [[nodiscard]] static Place first_of_segment(Place place) {
    return place & ~static_cast<uint32_t>(kSegment - 1);
  }
  [[nodiscard]] bool in_ring(Place place) const {
    return place != kNone && counters_->next - place - 1 < counters_->num_cells;
  }
  [[nodiscard]] bool request_counts(uint32_t request) const {
    return counters_->num_requests - request < static_cast<uint32_t>(max_requests_);
  }
  [[nodiscard]] uint32_t& head(size_t key, uint32_t hash) const;
  Place new_segment(uint32_t request, Place last) const;
  void link(Place place) const;

  int32_t max_requests_ = 0;
  uint32_t capacity_ = 0;         // tokens, a power of two
  uint32_t head_shift_ = 0;       // 32 less the bits of the capacity
  Counters* counters_ = nullptr;  // dev [1]
  int32_t* tokens_ = nullptr;     // dev i32 [capacity]
  Place* links_ = nullptr;        // dev u32 [capacity, kKeyLens.size()]
  Place* heads_ = nullptr;        // dev u32 [kKeyLens.size(), capacity]
  Segment* segments_ = nullptr;   // dev [capacity / kSegment]
  Row* rows_ = nullptr;           // dev [max_num_seqs]
};
static_assert(std::is_trivially_copyable_v<OutputIndex>);

}  // namespace warprow
