// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/act_and_mul.h"

#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"
#include "kernels/activation/act_and_mul_loops.h"
#include "kernels/activation/gelu.h"

namespace warprow::cpu {
namespace {

using RowFunction = void (*)(const float* gate, const float* up, int32_t n, float* out);

void launch_rows(Stream& stream,
                 const char* name,
                 const ConstActView& x,
                 const ActView& y,
                 RowFunction run_row) {
  const int64_t rows = y.shape[0];
  const auto width = static_cast<int32_t>(y.shape[1]);
  WR_CHECK_EQ(x.shape[0], rows);
  WR_CHECK_EQ(x.shape[1], 2 * y.shape[1]);
  const View<const float, 2> in = x.f32();
  const View<float, 2> out = y.f32();
  as_cpu(stream).launch(name, [in, out, rows, width, run_row](ComputePool& pool) {
    parallel_for_with_affinity(pool, rows, 8, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t t = begin; t < end; ++t) {
        const float* gate = in.row(t);
        run_row(gate, gate + width, width, out.row(t));
      }
    });
  });
}

}  // namespace

void silu_and_mul(Stream& stream, const SiluAndMulArgs& args) {
  launch_rows(stream, "silu_and_mul", args.x, args.out, WR_ISA_PICK(silu_and_mul_row));
}

void gelu_and_mul(Stream& stream, const GeluAndMulArgs& args) {
  launch_rows(stream,
              "gelu_and_mul",
              args.x,
              args.out,
              args.exact ? WR_ISA_PICK(exact_gelu_and_mul_row) : WR_ISA_PICK(gelu_and_mul_row));
}

void gelu(Stream& stream, const GeluArgs& args) {
  const View<float, 2> x = args.x.f32();
  const auto width = static_cast<int32_t>(x.shape[1]);
  const auto run_row = args.exact ? WR_ISA_PICK(exact_gelu_row) : WR_ISA_PICK(gelu_row);
  as_cpu(stream).launch("gelu", [x, width, run_row](ComputePool& pool) {
    parallel_for_with_affinity(pool, x.shape[0], 8, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t t = begin; t < end; ++t) {
        run_row(x.row(t), width);
      }
    });
  });
}

}  // namespace warprow::cpu
