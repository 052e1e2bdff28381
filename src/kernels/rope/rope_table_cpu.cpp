// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope/rope_table.h"

#include "device/cpu/cpu_stream.h"

#include <cmath>

namespace warprow::cpu {

void rope_table(Stream& stream, const RopeTableArgs& args) {
  WR_CHECK_EQ(args.cos.shape[0], args.positions.shape[0]);
  WR_CHECK_EQ(args.sin.shape[0], args.positions.shape[0]);
  WR_CHECK_EQ(args.cos.shape[1], args.inv_freq.shape[0]);
  WR_CHECK_EQ(args.sin.shape[1], args.inv_freq.shape[0]);
  as_cpu(stream).launch("rope_table", [args](ComputePool& pool) {
    pool.parallel_for(args.positions.shape[0], 16, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t t = begin; t < end; ++t) {
        const auto position = static_cast<float>(args.positions(t));
        for (int64_t i = 0; i < args.inv_freq.shape[0]; ++i) {
          const double angle = position * args.inv_freq(i);
          args.cos(t, i) = static_cast<float>(std::cos(angle)) * args.scale;
          args.sin(t, i) = static_cast<float>(std::sin(angle)) * args.scale;
        }
      }
    });
  });
}

}  // namespace warprow::cpu
