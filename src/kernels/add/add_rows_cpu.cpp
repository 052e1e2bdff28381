// SPDX-License-Identifier: Apache-2.0
#include "kernels/add/add_rows.h"

#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"

namespace warprow::cpu {

void add_rows(Stream& stream, const AddRowsArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.y.shape[0]);
  WR_CHECK_EQ(args.x.shape[1], args.y.shape[1]);
  as_cpu(stream).launch("add_rows", [args](ComputePool& pool) {
    parallel_for_with_affinity(
        pool, args.y.shape[0], 16, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
          const int64_t width = args.y.shape[1];
          const float scale = args.scale;
          for (int64_t t = begin; t < end; ++t) {
            const float* from = args.x.row(t);
            float* to = args.y.row(t);
            for (int64_t i = 0; i < width; ++i) {
              to[i] += scale * from[i];
            }
          }
        });
  });
}

}  // namespace warprow::cpu
