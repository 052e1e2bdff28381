// SPDX-License-Identifier: Apache-2.0
#include "worker/graph_sizes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// What captures take of a GPU: 6 to 8 MiB for the 29 pieces of 28 layers, below 0.5 MiB for the same layers whole,
// less for sampling.
constexpr int64_t kGraphBytes = int64_t{256} << 10;     // per graph
constexpr int64_t kGraphLayerBytes = int64_t{8} << 10;  // and per layer in it
constexpr int64_t kWholeGraphsPerSize = 2;   // with all logits, and with the largest alone
constexpr int64_t kSampleGraphsPerSize = 2;  // sets of sampling rules used at one size

Result<std::vector<int32_t>> capture_sizes(const ResolvedConfig& config) {
  if (config.cudagraph_capture_sizes == "auto") {
    return default_capture_sizes(
        config.max_num_seqs, 1 + config.speculation.num_drafts, config.max_num_batched_tokens);
  }
  Result<std::vector<int32_t>> sizes = parse_capture_sizes(config.cudagraph_capture_sizes);
  if (!sizes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--cudagraph-capture-sizes: {}", sizes.error().message));
  }
  if (sizes->back() > config.max_num_batched_tokens) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--cudagraph-capture-sizes: {} is above --max-num-batched-tokens {}",
                            sizes->back(),
                            config.max_num_batched_tokens));
  }
  return sizes;
}

// Reserves room for every size, captured in each way that the policy allows.
void reserve_graphs(GraphOptions& graphs, int64_t num_layers, int64_t draft_layers) {
  const bool pieces =
      graphs.policy != GraphPolicy::kFullDecodeOnly && graphs.policy != GraphPolicy::kNone;
  const int64_t whole_bytes = kGraphBytes + num_layers * kGraphLayerBytes;
  const int64_t pieces_bytes = pieces ? (num_layers + 1) * kGraphBytes : 0;
  graphs.capture_bytes = std::max(whole_bytes, pieces_bytes);
  graphs.sample_bytes = kGraphBytes + draft_layers * kGraphLayerBytes;
  const int64_t per_size =
      kWholeGraphsPerSize * whole_bytes + pieces_bytes + kSampleGraphsPerSize * graphs.sample_bytes;
  graphs.reserved_bytes = static_cast<int64_t>(graphs.sizes.size()) * per_size;
}

}  // namespace

Result<GraphOptions> decide_graphs(const ResolvedConfig& config,
                                   int32_t num_layers,
                                   int32_t draft_layers) {
  GraphOptions graphs;
  const Result<GraphPolicy> policy = parse_graph_policy(config.cudagraph_mode);
  Result<std::vector<int32_t>> sizes = capture_sizes(config);
  if (!policy || !sizes) {
    return tl::unexpected(!policy ? policy.error() : sizes.error());
  }
  graphs.policy = *policy;
  if (graphs.policy == GraphPolicy::kNone) {
    return graphs;
  }
  graphs.sizes = *std::move(sizes);
  reserve_graphs(graphs, num_layers, draft_layers);
  return graphs;
}

}  // namespace warprow
