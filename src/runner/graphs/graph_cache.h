// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/forward_context.h"
#include "device/device.h"
#include "device/graph.h"
#include "runner/graphs/graph_plan.h"
#include "runner/graphs/graph_reservation.h"

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
  uint64_t variant = 0;    // a hash of everything else that distinguishes two recordings
  bool operator==(const GraphKey&) const = default;

  // Whether the part samples: a step has two, the forward and sampling.
  [[nodiscard]] bool samples() const { return num_toks == 0; }
};

// One round of a 64-bit hash; also for variants.
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

// How the parts of steps that could use a graph ran.
struct GraphStats {
  int64_t full = 0;       // replayed whole
  int64_t piecewise = 0;  // replayed in pieces
  // Ran eagerly although a graph was wanted: not captured yet, too large, or no memory.
  int64_t eager = 0;
  int64_t captures = 0;
  int64_t evictions = 0;  // captured parts that were evicted
  int64_t bytes = 0;      // device memory that captures took and did not return
};

// Captured parts of steps by key. A key runs eagerly the first time, which loads its kernels. It is captured the
// second time and replayed from then on. Capturing runs nothing, so it touches no row and no cache. A server can
// answer from its first request on.
//
// When the reservation is used up, the least used captured parts are evicted. A forward evicts sampling first,
// since an eager forward launches hundreds of kernels and eager sampling a few; sampling never evicts a forward.
// Among its own kind a key evicts only what is used less than half as often, so that keys which alternate do not
// evict each other in every step. Uses are halved every kAgeing lookups, so that parts used only long ago can be
// evicted.
//
// Evicted graphs may still be running. They are destroyed once the stream has passed the eviction. Until then their
// memory is not free, and the key that needs it runs eagerly.
//
// Owns: the graphs.
// Thread: the runner's. All calls name the same stream.
// Invariant: GraphReservation's.
class GraphCache {
 public:
  static constexpr int64_t kAgeing = 1024;  // lookups, two a step

  GraphCache(Device& device, const GraphOptions& options)
      : device_(device),
        reservation_(options.reserved_bytes, options.capture_bytes, options.sample_bytes),
        evicted_done_(device.make_event()) {}

  // Runs a part of a step that may be recorded whole.
  template <typename Body>
  void run_full(Stream& stream, const GraphKey& key, const Body& body) {
    Entry* entry = ready_entry(stream, key);
    if (entry == nullptr) {
      body();
      return;
    }
    if (!entry->captured()) {
      const int64_t before = device_.free_bytes();
      stream.begin_capture();
      body();
      entry->graphs.push_back(stream.end_capture());
      note_capture(key, *entry, before);
    }
    stream.launch_graph(*entry->graphs.front());
    ++stats_.full;
  }

  // Runs a forward whose attention calls stay out of the graphs. The context must have no sink yet.
  template <typename Body>
  void run_piecewise(Stream& stream,
                     const GraphKey& key,
                     ForwardContext& context,
                     const Body& body) {
    Entry* entry = ready_entry(stream, key);
    if (entry == nullptr) {
      body();
      return;
    }
    if (!entry->captured()) {
      const int64_t before = device_.free_bytes();
      PieceRecorder recorder{*entry};
      context.sink = &recorder;
      stream.begin_capture();
      body();
      entry->graphs.push_back(stream.end_capture());
      context.sink = nullptr;
      note_capture(key, *entry, before);
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

  // A step that wanted a graph was larger than any captured size.
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
    int64_t bytes = 0;                           // bytes charged to the reservation
    int64_t uses = 0;                            // halved every kAgeing lookups
    [[nodiscard]] bool captured() const { return !graphs.empty(); }
  };
  using Entries = std::unordered_map<GraphKey, Entry, GraphKeyHash>;
  // Ends a piece at each attention call and begins the next piece after it.
  struct PieceRecorder final : AttentionSink {
    explicit PieceRecorder(Entry& to) : entry(to) {}
    void attention(Stream& stream, int32_t group, const AttentionCall& call) override {
      entry.graphs.push_back(stream.end_capture());
      entry.calls.push_back({group, call});
      stream.begin_capture();
    }
    Entry& entry;
  };

  // The key's entry if it is captured or may be captured now; null if the part must run eagerly this time.
  Entry* ready_entry(Stream& stream, const GraphKey& key);
  void note_capture(const GraphKey& key, Entry& entry, int64_t free_before);
  void age();
  // Evicts parts that `key` may evict, if that frees `shortage` bytes.
  void make_room(Stream& stream, const GraphKey& key, int64_t key_uses, int64_t shortage);
  [[nodiscard]] Entries::iterator least_used(const GraphKey& key, int64_t key_uses);
  // Destroys evicted graphs once the stream has passed them.
  void destroy_evicted();

  Device& device_;
  GraphReservation reservation_;
  Entries entries_;
  int64_t lookups_ = 0;
  std::vector<Entry> evicted_;           // not destroyed yet
  std::unique_ptr<Event> evicted_done_;  // recorded after the last use of all of them
  GraphStats stats_;
};

}  // namespace warprow
