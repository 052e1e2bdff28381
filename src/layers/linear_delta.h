// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "device/view.h"
#include "kernels/act_view.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

struct HalfNorm;        // kernels/linear/linear.h
struct LowRankProduct;  // kernels/low_rank/low_rank.h
struct LowRankTerm;

// A range of a linear layer's outputs that is a module of the checkpoint, or rows of one: those of this rank, or of a module
// of several parts.
struct LinearSitePart {
  std::string module;       // as Hugging Face names it: layers.3.self_attn.q_proj
  int64_t module_rows = 0;  // outputs of the module
  int64_t first_row = 0;    // of them, the first one here
  int64_t rows = 0;
  int64_t y_col = 0;  // of the product
};

// A linear layer to whose product something may be added. Its number is its index in Model::linear_sites. Where ranks divide
// the inputs, each has a part of the sums; what is added to such a product is a part of a sum over ranks too.
struct LinearSite {
  int64_t k = 0;            // inputs here
  int64_t module_cols = 0;  // inputs of the modules
  int64_t first_col = 0;    // of them, the first one here
  std::vector<LinearSitePart> parts;
};

// What some tokens of a step add to products of linear layers. A layer calls it on its way, so that an addition is a part
// of the forward and its graphs. Without one, or while it is not active, a layer runs as if there were none.
//
// Thread: the runner's.
class LinearDelta {
 public:
  virtual ~LinearDelta() = default;

  // Whether this step adds anything. A recorded forward replays only in steps with the same answer.
  [[nodiscard]] virtual bool active() const = 0;
  // Where a site's matrices lie, and the outputs that they add to.
  [[nodiscard]] virtual const LowRankProduct& product(int32_t site) const = 0;
  // Takes a layer's input, of all tokens of the step, before it may be overwritten. norm: of x, if it has a weight; begun, or with
  // room for its rows. in_product: the layer's product does this too, so nothing runs here (kernels/linear/linear.h,
  // LowRankHalves::kBoth).
  virtual void read(Stream& stream,
                    int32_t site,
                    const ConstActView& x,
                    const HalfNorm& norm,
                    float norm_eps,
                    bool in_product) = 0;
  // What the tokens add to the layer read last, for a product that adds it itself instead of the calls below.
  [[nodiscard]] virtual const LowRankTerm& term() const = 0;
  // y += what the tokens add. For tokens that add nothing y stays as it is.
  virtual void add(Stream& stream, const ActView& y) = 0;
  // activated = silu(gate) * up of the product and what is added to it, for tokens first_tok on. The product is overwritten.
  virtual void add_gated(Stream& stream,
                         int64_t first_tok,
                         const ActView& product,
                         const ActView& activated) = 0;
};

}  // namespace warprow
