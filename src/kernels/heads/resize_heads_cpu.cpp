// SPDX-License-Identifier: Apache-2.0
#include "kernels/heads/resize_heads.h"

#include "device/cpu/cpu_stream.h"

#include <algorithm>

namespace warprow::cpu {

void resize_heads(Stream& stream, const ResizeHeadsArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.x.shape[1] % args.num_heads, 0);
  WR_CHECK_EQ(args.out.shape[1] % args.num_heads, 0);
  const View<const float, 2> x = args.x.f32();
  const View<float, 2> out = args.out.f32();
  const int64_t from = x.shape[1] / args.num_heads;
  const int64_t to = out.shape[1] / args.num_heads;
  as_cpu(stream).launch("resize_heads", [=](ComputePool& pool) {
    pool.parallel_for(out.shape[0], 16, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      const int64_t both = std::min(from, to);
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t h = 0; h < args.num_heads; ++h) {
          float* at = out.row(t) + h * to;
          std::copy_n(x.row(t) + h * from, both, at);
          std::fill(at + both, at + to, 0.0F);
        }
      }
    });
  });
}

}  // namespace warprow::cpu
