// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "device/device.h"
#include "device/view.h"
#include "layers/linear.h"

#include <cstdint>

namespace warprow {

// What a family does to a product before it is added to the residual stream.
struct JoinMode {
  View<const float, 1> post_norm;  // dev f32 [hidden_size] or empty
  float norm_eps = 0.0F;
  float scale = 1.0F;
  RankGroup ranks = {};  // that have parts of the product; their sum is the product

  // Whether the product is added as it is.
  [[nodiscard]] bool is_plain() const {
    return post_norm.empty() && scale == 1.0F && ranks.alone();
  }
  // Whether the sum over ranks is added as it is.
  [[nodiscard]] bool is_plain_sum() const {
    return post_norm.empty() && scale == 1.0F && !ranks.alone();
  }
};

// residual += scale * post_norm(sum over ranks of product). The product is overwritten. With `next`, the first half of the
// norm of residual's rows follows; of a plain sum only.
void join_product(Stream& stream,
                  const JoinMode& mode,
                  const View<float, 2>& product,
                  const View<float, 2>& residual,
                  const HalfNorm* next = nullptr);

// A linear layer and everything between it and the next layer, as one operation:
//
//   residual += scale * post_norm(sum over ranks of (W x + b)), then possibly the first half of the norm
//   before the next layer
//
// One rank alone has the bias b. Without post-norm, scale and other ranks the product's own kernel does it
// (LinearEpilogue::kAdd), including the first half of the next norm where that pays. With other ranks and nothing else the
// kernel of the sum does all but the product.
//
// Owns: nothing; weights and workspace are the model's.
// Thread: the runner's.
// Invariant: what forward fuses depends on the number of rows only; next_norm reports it in advance.
class Join {
 public:
  Join() = default;
  Join(const Linear& linear, const JoinMode& mode) : linear_(linear), mode_(mode) {}

  // Called at start: sets the norm before the next layer, that layer's product, and workspace for all its rows.
  void lead_to(const DeviceFacts& device,
               View<const float, 1> norm_weight,
               const LinearShape& behind,
               const LinearWorkspace& workspace);

  [[nodiscard]] Linear& linear() { return linear_; }
  // The operation for which kernels prepare.
  [[nodiscard]] LinearShape shape() const;
  // Whether forward needs LinearWorkspace::joined.
  [[nodiscard]] bool is_plain() const { return mode_.is_plain(); }

  // The norm that forward of num_rows half computes, or leaves whole, which the next layer must finish; null if the next
  // layer computes all of it in its own way.
  [[nodiscard]] const HalfNorm* next_norm(int64_t num_rows) const {
    if (!halved_.has(num_rows)) {
      return nullptr;
    }
    return num_rows > most_begun_ ? &whole_ : &next_;
  }

  // x [T, inputs], residual [T, hidden_size].
  void forward(Stream& stream,
               const ConstActView& x,
               const View<float, 2>& residual,
               const LinearWorkspace& workspace) const;

 private:
  Linear linear_;
  JoinMode mode_;
  HalfNorm next_;
  HalfNorm whole_;  // the same, of which forward does nothing
  RowRange halved_;
  int64_t most_begun_ = 0;
};

}  // namespace warprow
