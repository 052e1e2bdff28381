// SPDX-License-Identifier: Apache-2.0
#include "kernels/add/add_rows.h"

#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"
#include "kernels/add/add_rows_loops.h"

namespace warprow::cpu {

void add_rows(Stream& stream, const AddRowsArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.y.shape[0]);
  WR_CHECK_EQ(args.x.shape[1], args.y.shape[1]);
  const auto run_row = WR_ISA_PICK(add_row);
  as_cpu(stream).launch("add_rows", [args, run_row](ComputePool& pool) {
    parallel_for_with_affinity(
        pool, args.y.shape[0], 16, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
          for (int64_t t = begin; t < end; ++t) {
            run_row(args.x.row(t), args.scale, args.y.shape[1], args.y.row(t));
          }
        });
  });
}

}  // namespace warprow::cpu
