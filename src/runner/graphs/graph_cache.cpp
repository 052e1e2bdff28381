// SPDX-License-Identifier: Apache-2.0
#include "runner/graphs/graph_cache.h"

#include <algorithm>

namespace warprow {

GraphCache::Entry* GraphCache::ready_entry(const GraphKey& key) {
  const auto [found, is_new] = entries_.try_emplace(key);
  Entry& entry = found->second;
  const bool captured = !entry.graphs.empty();
  if (is_new || (!captured && stats_.bytes + largest_capture_ > reserved_bytes_)) {
    ++stats_.eager;
    return nullptr;
  }
  return &entry;
}

void GraphCache::note_capture(int64_t free_before) {
  ++stats_.captures;
  const int64_t taken = std::max<int64_t>(0, free_before - device_.free_bytes());
  largest_capture_ = std::max(largest_capture_, taken);
  stats_.bytes += taken;
}

}  // namespace warprow
