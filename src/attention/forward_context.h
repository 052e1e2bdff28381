// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"
#include "device/stream.h"

#include <cstdint>
#include <span>

namespace warprow {

enum class GraphMode : uint8_t { kNone, kPiecewise, kFull };

// A contiguous part of the batch, for running two halves side by side.
struct MicroBatch {
  int32_t first_row = 0, num_rows = 0;
  int32_t first_tok = 0, num_toks = 0;
};

// One KV group as layers see it during a forward.
struct ForwardGroup {
  AttentionBackend* backend = nullptr;
  AttentionMetadata metadata;
};

// Receives a forward's attention calls instead of their backends, while the operations between them are recorded.
class AttentionSink {
 public:
  virtual ~AttentionSink() = default;
  virtual void attention(Stream& stream, int32_t group, const AttentionCall& call) = 0;
};

// What layers read during one forward, so that no model signature carries attention arguments.
struct ForwardContext {
  std::span<const ForwardGroup> groups;    // by KV group
  std::span<const KvLayerView> kv_layers;  // by layer
  GraphMode graph_mode = GraphMode::kNone;
  AttentionSink* sink = nullptr;              // null: calls go to the groups' backends
  int32_t num_toks = 0;                       // padded
  std::span<const MicroBatch> micro_batches;  // empty: not split
  std::span<const int32_t> rank_num_toks;     // tokens of every data-parallel rank; empty: one rank
};

// Installs a context on a stream for exactly one forward. Two streams hold two contexts; a check fails for a second
// one on the same stream.
class ScopedForwardContext {
 public:
  ScopedForwardContext(const Stream& stream, const ForwardContext& context);
  ~ScopedForwardContext();
  ScopedForwardContext(const ScopedForwardContext&) = delete;
  ScopedForwardContext& operator=(const ScopedForwardContext&) = delete;

 private:
  const Stream* stream_;
};

// The context installed on the stream by this thread; a check fails when there is none.
const ForwardContext& forward_context(const Stream& stream);

}  // namespace warprow
