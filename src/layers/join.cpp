// SPDX-License-Identifier: Apache-2.0
#include "layers/join.h"

#include "kernels/add/add_rows.h"
#include "kernels/linear/half_norm.h"
#include "kernels/norm/rms_norm.h"

#include <limits>

namespace warprow {

void join_product(Stream& stream,
                  const JoinMode& mode,
                  const View<float, 2>& product,
                  const View<float, 2>& residual,
                  const HalfNorm* next) {
  if (mode.is_plain_sum()) {
    mode.ranks.comm->add_sum(stream, product, residual, next);
    return;
  }
  if (!mode.ranks.alone()) {
    mode.ranks.comm->all_reduce(stream, product);
  }
  if (!mode.post_norm.empty()) {
    rms_norm(stream, {product, mode.post_norm, product, mode.norm_eps});
  }
  add_rows(stream, {product, residual, mode.scale});
}

void Join::lead_to(const DeviceFacts& device,
                   View<const float, 1> norm_weight,
                   const LinearShape& behind,
                   const LinearWorkspace& workspace) {
  next_.weight = norm_weight;
  next_.rows = workspace.normed;
  next_.squares = workspace.squares;
  whole_ = next_;
  whole_.begun = false;
  most_begun_ = is_plain() ? most_norms_begun(behind) : std::numeric_limits<int64_t>::max();
  halved_ = mode_.is_plain_sum() ? halved_norm_rows(device, behind)
                                 : halved_norm_rows(device, shape(), behind);
}

LinearShape Join::shape() const {
  return linear_.shape(DType::kF32, is_plain() ? LinearEpilogue::kAdd : LinearEpilogue::kStore);
}

void Join::forward(Stream& stream,
                   const ConstActView& x,
                   const View<float, 2>& residual,
                   const LinearWorkspace& workspace) const {
  if (is_plain()) {
    linear_.forward(stream, {x}, residual, LinearEpilogue::kAdd, workspace, next_norm(x.shape[0]));
    return;
  }
  const ActView product = workspace.joined.rows(0, x.shape[0]);
  linear_.forward(stream, {x}, product, LinearEpilogue::kStore, workspace);
  join_product(stream, mode_, product.f32(), residual, next_norm(x.shape[0]));
}

}  // namespace warprow
