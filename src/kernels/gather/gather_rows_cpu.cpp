// SPDX-License-Identifier: Apache-2.0
#include "kernels/gather/gather_rows.h"

#include "device/cpu/cpu_stream.h"

#include <cstring>

namespace warprow::cpu {

void gather_rows(Stream& stream, const GatherRowsArgs& args) {
  WR_CHECK_EQ(args.out.shape[0], args.index.empty() ? args.x.shape[0] : args.index.shape[0]);
  WR_CHECK_EQ(args.out.shape[1], args.x.shape[1]);
  const View<const float, 2> x = args.x.f32();
  const View<float, 2> out = args.out.f32();
  as_cpu(stream).launch("gather_rows", [x, out, index = args.index](ComputePool& pool) {
    const size_t bytes = static_cast<size_t>(x.shape[1]) * sizeof(float);
    pool.parallel_for(out.shape[0], 32, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t source = index.empty() ? i : index(i);
        WR_DCHECK(source < x.shape[0]);
        if (source < 0) {
          std::memset(out.row(i), 0, bytes);
        } else {
          std::memcpy(out.row(i), x.row(source), bytes);
        }
      }
    });
  });
}

}  // namespace warprow::cpu
