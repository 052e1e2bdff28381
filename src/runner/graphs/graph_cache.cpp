// SPDX-License-Identifier: Apache-2.0
#include "runner/graphs/graph_cache.h"

#include <algorithm>

namespace warprow {

GraphCache::Entry* GraphCache::ready_entry(const GraphKey& key) {
  const auto found = std::find_if(
      entries_.begin(), entries_.end(), [&key](const auto& entry) { return entry->key == key; });
  if (found == entries_.end()) {
    entries_.push_back(std::make_unique<Entry>());
    entries_.back()->key = key;
    ++stats_.eager;
    return nullptr;
  }
  Entry* entry = found->get();
  if (entry->graphs.empty() && stats_.bytes + largest_capture_ > reserved_bytes_) {
    ++stats_.eager;
    return nullptr;
  }
  return entry;
}

void GraphCache::note_capture(int64_t free_before) {
  ++stats_.captures;
  const int64_t taken = std::max<int64_t>(0, free_before - device_.free_bytes());
  largest_capture_ = std::max(largest_capture_, taken);
  stats_.bytes += taken;
}

}  // namespace warprow
