// SPDX-License-Identifier: Apache-2.0
#include "kernels/cast/cast_rows.h"

#include "device/cpu/cpu_stream.h"

#include <algorithm>

namespace warprow::cpu {

void cast_rows(Stream& stream, const CastRowsArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.x.shape[1], args.out.shape[1]);
  const View<const float, 2> x = args.x;
  const View<float, 2> out = args.out.f32();
  as_cpu(stream).launch("cast_rows", [x, out](ComputePool& pool) {
    pool.parallel_for(x.shape[0], 16, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t t = begin; t < end; ++t) {
        std::copy_n(x.row(t), x.shape[1], out.row(t));
      }
    });
  });
}

}  // namespace warprow::cpu
