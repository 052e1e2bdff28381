// SPDX-License-Identifier: Apache-2.0
#include "worker/deep_prefill.h"

#include "models/tensor_split.h"
#include "worker/device_policy.h"

#include <algorithm>

namespace warprow {
namespace {

constexpr int32_t kQueryTile =
    128;  // of the prefill attention kernels of CUDA: one tile of a head keeps an SM busy
constexpr int32_t kMinCpuChunk = 128;

}  // namespace

DeepPrefill deep_prefill(const ModelPlan& plan) {
  int64_t ops_per_tok = 0;   // of all matrices of the layers
  int64_t ops_per_pair = 0;  // of all layers with full attention
  int32_t least_heads = 0;
  const DecoderSpec mine = rank_spec(plan.spec, plan.place.tensor);
  for (const LayerSpec& layer : mine.layers) {
    const AttentionSpec& attention = layer.attention;
    ops_per_tok += int64_t{2} * mine.hidden_size *
                   (attention.qkv_size() + attention.out_size() + 3 * layer.ffn.active_size());
    if (attention.window == 0) {
      ops_per_pair += int64_t{2} * (attention.q_size() + attention.out_size());
      least_heads =
          least_heads == 0 ? attention.num_heads : std::min(least_heads, attention.num_heads);
    }
  }
  if (ops_per_pair == 0) {
    return {};
  }
  const int64_t step_ops = ops_per_tok * plan.config.max_num_batched_tokens;
  const int64_t device_ops =
      device_policy(plan.device.kind).deep_chunk_ops_per_sm * plan.device.num_sms;
  // Rounded down: with one tile more some SMs would take twice as long as others.
  const int32_t num_tiles = plan.device.num_sms / least_heads;
  return {std::max<int64_t>(1, std::max(step_ops, device_ops) / ops_per_pair),
          std::max(kMinCpuChunk, num_tiles * kQueryTile)};
}

}  // namespace warprow
