// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/sigmoid_mul.h"

#include "base/check.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/activation/act_and_mul_loops.h"

#include <cstdint>

namespace warprow::cpu {

void sigmoid_mul(Stream& stream, const SigmoidMulArgs& args) {
  WR_CHECK_EQ(args.gate.shape[0], args.y.shape[0]);
  WR_CHECK_EQ(args.gate.shape[1], args.y.shape[1]);
  const View<const float, 2> gate = args.gate.f32();
  const View<float, 2> y = args.y.f32();
  const auto run_row = WR_ISA_PICK(sigmoid_mul_row);
  as_cpu(stream).launch("sigmoid_mul", [gate, y, run_row](ComputePool& pool) {
    pool.parallel_for(y.shape[0], 8, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t t = begin; t < end; ++t) {
        run_row(gate.row(t), static_cast<int32_t>(y.shape[1]), y.row(t));
      }
    });
  });
}

}  // namespace warprow::cpu
