// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include "base/check.h"
#include "kernels/add/add_rows.h"

namespace warprow {

void Communicator::add_sum(Stream& stream,
                           View<float, 2> product,
                           View<float, 2> residual,
                           const HalfNorm* next) {
  WR_CHECK(next == nullptr, "a norm in halves is for GPUs");
  all_reduce(stream, product);
  if (!stream.discards()) {
    add_rows(stream, {product, residual});
  }
}

}  // namespace warprow
