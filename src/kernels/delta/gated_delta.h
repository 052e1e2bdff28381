// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/attention/kv_view.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

// The sizes of a gated delta net. A key head serves num_value_heads / num_key_heads value heads.
struct GatedDeltaShape {
  int32_t num_key_heads = 0;
  int32_t num_value_heads = 0;
  int32_t key_dim = 0;    // of a head of queries and keys
  int32_t value_dim = 0;  // of a head of values
  int32_t conv_len = 0;   // tokens that the convolution sees, the current one included
  bool tiled =
      false;  // value heads repeat the order of the key heads; else those of a key head follow each other

  // The key head that serves a value head.
  [[nodiscard]] WR_HD int32_t key_head(int32_t value_head) const {
    return tiled ? value_head % num_key_heads : value_head / (num_value_heads / num_key_heads);
  }

  [[nodiscard]] WR_HD int64_t key_size() const { return int64_t{num_key_heads} * key_dim; }
  [[nodiscard]] WR_HD int64_t value_size() const { return int64_t{num_value_heads} * value_dim; }
  // Queries, keys and values: what the convolution runs over.
  [[nodiscard]] WR_HD int64_t num_channels() const { return 2 * key_size() + value_size(); }
  // The channels of a value head.
  [[nodiscard]] WR_HD int32_t head_channels() const { return 2 * key_dim + value_dim; }
  [[nodiscard]] WR_HD int64_t conv_floats() const { return (conv_len - 1) * num_channels(); }
  [[nodiscard]] WR_HD int64_t head_floats() const { return int64_t{key_dim} * value_dim; }
  // A row's state. CPU: the convolution's last inputs [conv_len - 1, num_channels], then a matrix [key_dim, value_dim] for
  // each value head. CUDA: for each value head the last inputs of its channels, then its matrix. There the value heads of
  // a key head have copies of its inputs, so that nothing of a state is shared by two CTAs.
  [[nodiscard]] WR_HD int64_t head_state_floats() const {
    return int64_t{conv_len - 1} * head_channels() + head_floats();
  }
  [[nodiscard]] WR_HD int64_t state_floats() const { return num_value_heads * head_state_floats(); }
  bool operator==(const GatedDeltaShape&) const = default;
};

// Where the states of one layer lie: a state is cut into pages, which are blocks of the KV pool.
struct StatePages {
  float* data = nullptr;    // of block 0
  int64_t page_stride = 0;  // floats from one block to the next
  int64_t page_floats = 0;  // of a state in a block
  int32_t num_pages = 0;    // of a state
  int32_t unit = 0;         // checkpoints are at multiples of it, in tokens
  // A row has 3 * num_pages cells: the pages of its state, of a checkpoint, and of the state it starts from. Null
  // blocks: no checkpoint is kept; the row starts from its own state.
  BlockTableView table;
};

// One step of a gated delta net: convolution, gated delta rule, gated norm.
//
// Formula, for each token: c = silu(sum over j < conv_len of conv[j] * x[t - conv_len + 1 + j]), cut into heads of q, k
//   and v; q and k are divided by sqrt(|.|^2 + 1e-6), q also by sqrt(key_dim). For each value head with a state S:
//   S = exp(g) S, g = rate * softplus(a + dt_bias); S += k (sigmoid(b) (v - k^T S)); o = q^T S.
//   out = o / sqrt(mean(o^2) + eps) * norm_weight * silu(z).
// Shapes: qkvz [T, num_channels + value_size], q, k, v and z beside each other; ba [T, 2 * num_value_heads]; conv
//   [conv_len, num_channels]; rate, dt_bias [num_value_heads]; norm_weight [value_dim]; out [T, value_size]; gates
//   [T, 2 * num_value_heads] scratch; scratch gated_delta_scratch_floats.
// Mapping: CPU: rows times channels, then rows times value heads in parallel, lanes along channels and along a head's
//   values; tokens in their order.
// Bytes moved: a row's state twice, and 8 * T * (num_channels + 2 * value_size).
// Numerics: float32. Every sum runs over one token's elements, or over key_dim in its order, so a token's result and the
//   state behind it do not depend on how tokens are cut into steps.
// Preconditions: conv_len is 2 to kMaxConvLen; CUDA: fits_cuda. A CPU overwrites q, k and v. A row whose seq_len equals
//   its tokens starts from zeros. Rows past the step's have row -1. Results of padding tokens are undefined. The state
//   after a row's last token that is not a draft is stored in its own pages, and the state at the last multiple of unit before
//   that token in the checkpoint's, if the step passes it. With num_sampled the call follows that of a step and advances the
//   stored states by the step's accepted drafts: qkvz and ba are the step's, without z; out is scratch.
// Origin: Yang et al., "Gated Delta Networks", 2024.
struct GatedDeltaArgs {
  GatedDeltaShape shape;
  ActView qkvz;
  ConstActView ba;
  bool ba_by_key_head =
      false;  // b and a of each key head's value heads beside each other; else all b, then all a
  const float* conv = nullptr;
  const float* rate = nullptr;
  const float* dt_bias = nullptr;
  View<const float, 1> norm_weight;
  float norm_eps = 0.0F;
  View<const int32_t, 1> idx_mapping;      // [max_num_seqs]
  View<const int32_t, 1> query_start_loc;  // [max_num_seqs + 1]
  View<const int32_t, 1> seq_lens;         // [max_num_seqs]
  int32_t num_decode_rows = 0;             // the first rows, which have a token each; CUDA
  // cu_num_logits: AttentionBatch's; empty: there are no drafts. num_sampled: [max_num_seqs] or empty: 1 + the number of
  // accepted drafts of a row with drafts.
  View<const int32_t, 1> cu_num_logits = {};
  View<const int32_t, 1> num_sampled = {};
  StatePages pages;
  float* gates = nullptr;    // CPU
  float* scratch = nullptr;  // CPU
  ActView out;
};

inline constexpr int32_t kMaxConvLen = 8;

// Limits of the CUDA kernel. Heads are multiples of kCudaDeltaUnit.
inline constexpr int32_t kMaxCudaConvLen = 4;
inline constexpr int32_t kMaxCudaDeltaDim = 128;
inline constexpr int32_t kCudaDeltaUnit = 4;
[[nodiscard]] constexpr bool fits_cuda(const GatedDeltaShape& shape) {
  const auto fits = [](int32_t dim) {
    return dim > 0 && dim <= kMaxCudaDeltaDim && dim % kCudaDeltaUnit == 0;
  };
  return fits(shape.key_dim) && fits(shape.value_dim) && shape.conv_len >= 2 &&
         shape.conv_len <= kMaxCudaConvLen && shape.num_value_heads % shape.num_key_heads == 0;
}

// Floats of scratch on a CPU with so many threads.
[[nodiscard]] inline int64_t gated_delta_scratch_floats(const GatedDeltaShape& shape,
                                                        int32_t num_threads) {
  return num_threads * shape.head_floats();
}

WR_OP(gated_delta, GatedDeltaArgs);

}  // namespace warprow
