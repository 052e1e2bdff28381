// SPDX-License-Identifier: Apache-2.0
#include "kernels/scale/scale_rows.h"

#include "device/cpu/cpu_stream.h"

namespace warprow::cpu {

void scale_rows(Stream& stream, const ScaleRowsArgs& args) {
  as_cpu(stream).launch("scale_rows", [args](ComputePool& pool) {
    pool.parallel_for(args.x.shape[0], 16, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t t = begin; t < end; ++t) {
        float* x = args.x.row(t);
        for (int64_t i = 0; i < args.x.shape[1]; ++i) {
          x[i] *= args.scale;
        }
      }
    });
  });
}

}  // namespace warprow::cpu
