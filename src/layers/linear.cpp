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
                     const LinearInput& in,
                     ActView y,
                     LinearEpilogue epilogue,
                     const LinearWorkspace& workspace) const {
  const int64_t toks = in.x.shape[0];
  LinearArgs args = args_;
  args.x = in.x;
  args.y = y;
  args.epilogue = epilogue;
  args.scratch = workspace.scratch;
  if (!in.norm_weight.empty()) {
    args.norm_weight = in.norm_weight;
    args.norm_eps = in.norm_eps;
    args.normed = {workspace.normed.dtype, workspace.normed.data, toks, in.x.shape[1]};
  }
  if (epilogue != LinearEpilogue::kStore) {
    args.wide = {workspace.wide.dtype, workspace.wide.data, toks, num_outputs_};
  }
  linear(stream, args);
}

}  // namespace warprow
