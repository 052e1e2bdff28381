// SPDX-License-Identifier: Apache-2.0
#include "runner/graphs/graph_cache.h"

#include "base/log.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace warprow {
namespace {

GraphReservation::Kind kind_of(const GraphKey& key) {
  return key.samples() ? GraphReservation::kSample : GraphReservation::kForward;
}

// Whether a key with this many uses may evict another.
bool may_evict(const GraphKey& key, int64_t uses, const GraphKey& other, int64_t other_uses) {
  return key.samples() == other.samples() ? 2 * other_uses < uses : other.samples();
}

}  // namespace

GraphCache::Entry* GraphCache::ready_entry(Stream& stream, const GraphKey& key) {
  if (++lookups_ % kAgeing == 0) {
    age();
  }
  const auto [found, is_new] = entries_.try_emplace(key);
  Entry& entry = found->second;
  ++entry.uses;
  if (entry.captured()) {
    return &entry;
  }
  destroy_evicted();
  const int64_t shortage = reservation_.shortage(kind_of(key));
  if (!is_new && shortage == 0) {
    return &entry;
  }
  if (!is_new && evicted_.empty()) {
    make_room(stream, key, entry.uses, shortage);
  }
  ++stats_.eager;
  return nullptr;
}

void GraphCache::note_capture(const GraphKey& key, Entry& entry, int64_t free_before) {
  ++stats_.captures;
  const int64_t taken = std::max<int64_t>(0, free_before - device_.free_bytes());
  entry.bytes = reservation_.note_capture(kind_of(key), taken);
  stats_.bytes = reservation_.bytes();
}

void GraphCache::age() {
  for (auto& [key, entry] : entries_) {
    entry.uses /= 2;
  }
}

GraphCache::Entries::iterator GraphCache::least_used(const GraphKey& key, int64_t key_uses) {
  auto least = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    const auto& [other, entry] = *at;
    if (!entry.captured() || !may_evict(key, key_uses, other, entry.uses)) {
      continue;
    }
    // Evict captured sampling before any forward.
    const auto order = [](const auto& item) {
      return std::pair(!item.first.samples(), item.second.uses);
    };
    if (least == entries_.end() || order(*at) < order(*least)) {
      least = at;
    }
  }
  return least;
}

void GraphCache::make_room(Stream& stream,
                           const GraphKey& key,
                           int64_t key_uses,
                           int64_t shortage) {
  int64_t evictable = 0;
  for (const auto& [other, entry] : entries_) {
    evictable += may_evict(key, key_uses, other, entry.uses) ? entry.bytes : 0;
  }
  if (evictable < shortage) {
    return;
  }
  for (int64_t room = 0; room < shortage;) {
    Entry& victim = least_used(key, key_uses)->second;
    room += victim.bytes;
    Entry seen;  // the entry as it was before its capture
    seen.uses = victim.uses;
    evicted_.push_back(std::exchange(victim, std::move(seen)));
    ++stats_.evictions;
    if (std::has_single_bit(
            static_cast<uint64_t>(stats_.evictions))) {  // the 1st, 2nd, 4th, 8th ...
      WR_LOG_WARN(
          "the {} MiB reserved for CUDA graphs are used up: evicted the least used ({} since "
          "start)",
          reservation_.reserved_bytes() >> 20,
          stats_.evictions);
    }
  }
  stream.record(*evicted_done_);
}

void GraphCache::destroy_evicted() {
  if (evicted_.empty() || !evicted_done_->reached()) {
    return;
  }
  int64_t bytes = 0;
  for (const Entry& entry : evicted_) {
    bytes += entry.bytes;
  }
  const int64_t before = device_.free_bytes();
  evicted_.clear();
  reservation_.note_destroyed(bytes, device_.free_bytes() - before);
  stats_.bytes = reservation_.bytes();
}

}  // namespace warprow
