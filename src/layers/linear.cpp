// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include "base/check.h"

#include <iterator>

namespace warprow {

Linear::Linear(ParameterLoader& loader, const std::vector<LinearPart>& parts, ActFormat act) {
  WR_CHECK_LE(parts.size(), std::size(args_.segments));
  args_.act = act;
  for (const LinearPart& part : parts) {
    LinearSegment& segment = args_.segments[args_.num_segments++];
    segment.w = loader.matrix(part.weight);
    segment.y_col = num_outputs_;
    if (!part.bias.empty()) {
      TensorWish bias = part.weight;
      bias.name = part.bias;
      bias.cols = bias.rows;
      bias.rows = 1;
      segment.bias = loader.vector(bias).data;
    }
    num_outputs_ += part.weight.rows;
  }
}

Linear::Linear(const PackedWeight& weight, ActFormat act) : num_outputs_(weight.n) {
  args_.act = act;
  args_.num_segments = 1;
  args_.segments[0].w = weight;
}

void Linear::forward(Stream& stream,
                     View<const float, 2> x,
                     View<float, 2> y,
                     std::byte* scratch) const {
  LinearArgs args = args_;
  args.x = x;
  args.y = y;
  args.scratch = scratch;
  linear(stream, args);
}

}  // namespace warprow
