// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/combine_experts.h"

#include "base/check.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/experts/combine_experts_loops.h"
#include "kernels/experts/expert_lists_cpu.h"

namespace warprow::cpu {

void combine_experts(Stream& stream, const CombineExpertsArgs& args) {
  const int64_t rows = args.y.shape[0];
  WR_CHECK_EQ(args.x.shape[0], rows * args.lists.num_chosen);
  WR_CHECK_EQ(args.x.shape[1], args.y.shape[1]);
  WR_CHECK_EQ(args.weights.shape[0], rows);
  WR_CHECK_EQ(args.weights.shape[1], args.lists.num_chosen);
  const View<const float, 2> x = args.x.f32();
  const auto run_row = WR_ISA_PICK(combine_experts_row);
  as_cpu(stream).launch("combine_experts", [args, x, rows, run_row](ComputePool& pool) {
    const int32_t num_chosen = args.lists.num_chosen;
    pool.parallel_for(
        real_rows(args.lists, rows), 4, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
          for (int64_t t = begin; t < end; ++t) {
            run_row({x.data,
                     x.stride[0],
                     args.lists.places.data + t * num_chosen,
                     args.weights.row(t),
                     num_chosen,
                     args.add,
                     args.y.row(t),
                     args.y.shape[1]});
          }
        });
  });
}

}  // namespace warprow::cpu
