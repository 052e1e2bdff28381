// SPDX-License-Identifier: Apache-2.0
#include "runner/drafts/output_index.h"

#include "base/math.h"

#include <algorithm>
#include <bit>

namespace warprow {

OutputIndex::OutputIndex(Arena& arena, int32_t max_num_seqs, int32_t max_requests, int32_t max_len)
    : max_requests_(max_requests) {
  if (max_requests == 0) {
    return;
  }
  const int64_t most = int64_t{max_requests} * round_up(max_len, kSegment);
  capacity_ = std::bit_ceil(static_cast<uint32_t>(std::min<int64_t>(most, kMaxTokens)));
  head_shift_ = 32 - static_cast<uint32_t>(std::countr_zero(capacity_));
  counters_ = arena.alloc<Counters>(1);
  tokens_ = arena.alloc<int32_t>(capacity_);
  links_ = arena.alloc<Place>(int64_t{capacity_} * std::ssize(kKeyLens));
  heads_ = arena.alloc<Place>(int64_t{capacity_} * std::ssize(kKeyLens));
  segments_ = arena.alloc<Segment>(capacity_ / static_cast<uint32_t>(kSegment));
  rows_ = arena.alloc<Row>(max_num_seqs);
}

void OutputIndex::begin_request(int32_t row) const {
  rows_[row] = {++counters_->num_requests, kNone};
}

void OutputIndex::add(int32_t row, int32_t token) const {
  Row& r = rows_[row];
  if (!request_counts(r.request)) {
    return;
  }
  const bool goes_on = in_ring(r.last) && (r.last + 1) % kSegment != 0;
  r.last = goes_on ? r.last + 1 : new_segment(r.request, r.last);
  tokens_[cell(r.last)] = token;
  ++segment(r.last).num_toks;
  link(r.last);
}

// Takes the oldest segment for what comes behind `last`. The first place of a request, and of one whose last segment is no
// longer in the ring, has none before it.
OutputIndex::Place OutputIndex::new_segment(uint32_t request, Place last) const {
  Counters& c = *counters_;
  const auto take = [&] {
    c.next += kSegment;
    c.num_cells = std::min(c.num_cells + kSegment, capacity_);
  };
  if (c.next == kNone) {  // at the start, and after the wrap: kNone is no place
    take();
  }
  const Place place = c.next;
  take();
  const bool goes_on = in_ring(last);
  segment(place) = {request, kNone, goes_on ? first_of_segment(last) : kNone, 0};
  if (goes_on) {
    segment(last).next = place;
  }
  return place;
}

void OutputIndex::link(Place place) const {
  uint32_t hash = 0;
  int32_t len = 0;
  Place at = place;
  for (size_t key = kKeyLens.size(); key-- > 0;) {
    for (; len < kKeyLens[key]; ++len) {
      if (len > 0) {
        at = previous(at);
      }
      if (at == kNone) {
        return;
      }
      hash = mix(hash, token(at));
    }
    Place& latest = head(key, hash);
    links_[cell(place) * kKeyLens.size() + key] = latest;
    latest = place;
  }
}

uint32_t& OutputIndex::head(size_t key, uint32_t hash) const {
  return heads_[key * capacity_ + ((hash * 0x85EBCA6BU) >> head_shift_)];
}

OutputIndex::Place OutputIndex::latest(size_t key, uint32_t hash) const {
  const Place place = head(key, hash);
  return in_ring(place) ? place : kNone;
}

OutputIndex::Place OutputIndex::before(size_t key, Place place) const {
  const Place older = links_[cell(place) * kKeyLens.size() + key];
  return in_ring(older) ? older : kNone;
}

bool OutputIndex::counts(Place place) const { return request_counts(segment(place).request); }

OutputIndex::Place OutputIndex::next(Place place) const {
  const Segment& s = segment(place);
  const auto behind = static_cast<int32_t>(place % kSegment) + 1;
  if (behind == kSegment) {
    return s.next;
  }
  return behind < s.num_toks ? place + 1 : kNone;
}

OutputIndex::Place OutputIndex::previous(Place place) const {
  if (place % kSegment != 0) {
    return place - 1;
  }
  const Place before = segment(place).previous;
  return in_ring(before) ? before + (kSegment - 1) : kNone;
}

}  // namespace warprow
