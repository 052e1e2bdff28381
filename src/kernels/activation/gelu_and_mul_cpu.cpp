// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/gelu_and_mul.h"

#include "device/cpu/cpu_stream.h"
#include "kernels/activation/gelu_and_mul_loops.h"

namespace warprow::cpu {

void gelu_and_mul(Stream& stream, const GeluAndMulArgs& args) {
  const int64_t rows = args.out.shape[0];
  const auto width = static_cast<int32_t>(args.out.shape[1]);
  WR_CHECK_EQ(args.x.shape[0], rows);
  WR_CHECK_EQ(args.x.shape[1], 2 * args.out.shape[1]);
  const View<const float, 2> in = args.x.f32();
  const View<float, 2> out = args.out.f32();
  const auto run_row = WR_ISA_PICK(gelu_and_mul_row);
  as_cpu(stream).launch("gelu_and_mul", [in, out, rows, width, run_row](ComputePool& pool) {
    pool.parallel_for(rows, 8, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t t = begin; t < end; ++t) {
        const float* x = in.row(t);
        run_row(x, x + width, width, out.row(t));
      }
    });
  });
}

}  // namespace warprow::cpu
