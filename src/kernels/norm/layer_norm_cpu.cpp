// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/layer_norm.h"

#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"
#include "kernels/norm/layer_norm_loops.h"

namespace warprow::cpu {

void layer_norm(Stream& stream, const LayerNormArgs& args) {
  const int64_t rows = args.x.shape[0];
  const int64_t width = args.x.shape[1];
  WR_CHECK_EQ(args.out.shape[0], rows);
  WR_CHECK_EQ(args.out.shape[1], width);
  WR_CHECK_EQ(args.weight.shape[0], width);
  WR_CHECK(args.bias.empty() || args.bias.shape[0] == width);
  WR_CHECK(args.add.empty() || (args.add.shape[0] == rows && args.add.shape[1] == width));
  const View<const float, 2> x = args.x.f32();
  const View<const float, 2> add = args.add.empty() ? View<const float, 2>() : args.add.f32();
  const View<float, 2> out = args.out.f32();
  const LayerNormLoop loop{.x = x.data,
                           .x_stride = x.stride[0],
                           .add = add.data,
                           .add_stride = add.stride[0],
                           .weight = args.weight.data,
                           .bias = args.bias.data,
                           .out = out.data,
                           .out_stride = out.stride[0],
                           .width = static_cast<int32_t>(width),
                           .eps = args.eps};
  const auto run_rows = WR_ISA_PICK(layer_norm_rows);
  as_cpu(stream).launch("layer_norm", [loop, rows, run_rows](ComputePool& pool) {
    parallel_for_with_affinity(
        pool, rows, 16, [&](int64_t begin, int64_t end, int32_t) { run_rows(loop, begin, end); });
  });
}

}  // namespace warprow::cpu
