// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/forward_context.h"
#include "device/device.h"
#include "device/graph.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace warprow {

// What a captured part of a step depends on besides device memory.
struct GraphKey {
  GraphMode mode = GraphMode::kFull;
  int32_t num_toks = 0;    // 0: the part that samples
  int32_t num_rows = 0;    // 0: any
  int32_t num_logits = 0;  // 0: any
  int32_t query_len = 0;   // 0: any
  uint64_t variant = 0;    // a hash of whatever else tells two recordings apart
  bool operator==(const GraphKey&) const = default;

  // Whether the part samples: a step has two, the forward and sampling.
  [[nodiscard]] bool samples() const { return num_toks == 0; }
};

// One round of a 64-bit hash, for variants too.
constexpr uint64_t mix_hash(uint64_t hash, uint64_t part) {
  hash = (hash ^ part) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 32);
}

struct GraphKeyHash {
  size_t operator()(const GraphKey& key) const {
    uint64_t hash = static_cast<uint64_t>(key.mode);
    for (const int32_t part : {key.num_toks, key.num_rows, key.num_logits, key.query_len}) {
      hash = mix_hash(hash, static_cast<uint32_t>(part));
    }
    return mix_hash(hash, key.variant);
  }
};

// What became of the parts of steps that wanted a graph.
struct GraphStats {
  int64_t full = 0;       // replayed whole
  int64_t piecewise = 0;  // replayed in pieces
  int64_t eager =
      0;  // ran eagerly though a graph was wanted: not captured yet, too large, no memory
  int64_t captures = 0;
  int64_t bytes = 0;  // device memory that captures took
};

// Captured parts of steps by key. A key runs eagerly the first time, which loads its kernels, is
// captured the second time it comes and replayed from then on: capturing runs nothing, so it touches
// no row and no cache, and a server answers from its first request on.
//
// Owns: the graphs.
// Thread: the runner's.
// Invariant: a capture that would exceed the reservation if it took as much as the largest so far is
// not begun; such keys run eagerly.
class GraphCache {
 public:
  // capture_bytes: what a capture is reckoned to take until one has taken more.
  GraphCache(Device& device, int64_t reserved_bytes, int64_t capture_bytes)
      : device_(device), reserved_bytes_(reserved_bytes), largest_capture_(capture_bytes) {}

  // Runs a part of a step that may be recorded whole.
  template <typename Body>
  void run_full(Stream& stream, const GraphKey& key, const Body& body) {
    Entry* entry = ready_entry(key);
    if (entry == nullptr) {
      body();
      return;
    }
    if (entry->graphs.empty()) {
      const int64_t before = device_.free_bytes();
      stream.begin_capture();
      body();
      entry->graphs.push_back(stream.end_capture());
      note_capture(before);
    }
    stream.launch_graph(*entry->graphs.front());
    ++stats_.full;
  }

  // Runs a forward whose attention calls stay out of the graphs. The context's sink must be free.
  template <typename Body>
  void run_piecewise(Stream& stream,
                     const GraphKey& key,
                     ForwardContext& context,
                     const Body& body) {
    Entry* entry = ready_entry(key);
    if (entry == nullptr) {
      body();
      return;
    }
    if (entry->graphs.empty()) {
      const int64_t before = device_.free_bytes();
      PieceRecorder recorder{*entry};
      context.sink = &recorder;
      stream.begin_capture();
      body();
      entry->graphs.push_back(stream.end_capture());
      context.sink = nullptr;
      note_capture(before);
    }
    for (size_t i = 0; i < entry->graphs.size(); ++i) {
      stream.launch_graph(*entry->graphs[i]);
      if (i < entry->calls.size()) {
        const Call& call = entry->calls[i];
        const ForwardGroup& group = context.groups[static_cast<size_t>(call.group)];
        group.backend->forward(stream, call.call, group.metadata);
      }
    }
    ++stats_.piecewise;
  }

  // A step that wanted a graph was larger than any.
  void note_too_large() { ++stats_.eager; }
  [[nodiscard]] const GraphStats& stats() const { return stats_; }

 private:
  struct Call {
    int32_t group = 0;
    AttentionCall call;
  };
  struct Entry {
    std::vector<std::unique_ptr<Graph>> graphs;  // empty: seen, not captured
    std::vector<Call> calls;                     // between graphs i and i + 1
  };
  // Ends a piece at each attention call and begins the next behind it.
  struct PieceRecorder final : AttentionSink {
    explicit PieceRecorder(Entry& to) : entry(to) {}
    void attention(Stream& stream, int32_t group, const AttentionCall& call) override {
      entry.graphs.push_back(stream.end_capture());
      entry.calls.push_back({group, call});
      stream.begin_capture();
    }
    Entry& entry;
  };

  // The key's entry when it is captured or may be now; null when this time must run eagerly.
  Entry* ready_entry(const GraphKey& key);
  void note_capture(int64_t free_before);

  Device& device_;
  int64_t reserved_bytes_;
  int64_t largest_capture_;
  std::unordered_map<GraphKey, Entry, GraphKeyHash> entries_;
  GraphStats stats_;
};

}  // namespace warprow
