// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/rms_norm.h"

#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"
#include "kernels/norm/rms_norm_loops.h"

namespace warprow::cpu {

void rms_norm(Stream& stream, const RmsNormArgs& args) {
  const int64_t rows = args.x.shape[0];
  const int64_t width = args.x.shape[1];
  WR_CHECK_EQ(args.out.shape[0], rows);
  WR_CHECK_EQ(args.out.shape[1], width);
  WR_CHECK_EQ(args.weight.shape[0], width);
  const View<const float, 2> x = args.x.f32();
  const View<float, 2> out = args.out.f32();
  const RmsNormLoop loop{x.data,
                         x.stride[0],
                         args.weight.data,
                         out.data,
                         out.stride[0],
                         static_cast<int32_t>(width),
                         args.eps};
  const auto run_rows = WR_ISA_PICK(rms_norm_rows);
  as_cpu(stream).launch("rms_norm", [loop, rows, run_rows](ComputePool& pool) {
    parallel_for_with_affinity(
        pool, rows, 16, [&](int64_t begin, int64_t end, int32_t) { run_rows(loop, begin, end); });
  });
}

}  // namespace warprow::cpu
