// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_scales/kv_scales.h"

#include "device/cpu/cpu_stream.h"

#include <algorithm>
#include <cmath>

namespace warprow::cpu {

void kv_scales(Stream& stream, const KvScalesArgs& args) {
  const int64_t num_heads = args.scales.shape[0];
  WR_CHECK_EQ(args.x.shape[1] % num_heads, 0);
  WR_CHECK_EQ(args.slot_mapping.shape[0], args.x.shape[0]);
  as_cpu(stream).launch("kv_scales", [args, num_heads](ComputePool& pool) {
    const int64_t dim = args.x.shape[1] / num_heads;
    pool.parallel_for(num_heads, 1, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t h = begin; h < end; ++h) {
        float peak = 0.0F;
        for (int64_t t = 0; t < args.x.shape[0]; ++t) {
          const float* x = args.x.f32().row(t) + h * dim;
          for (int64_t d = 0; d < dim && args.slot_mapping(t) >= 0; ++d) {
            peak = std::max(peak, std::fabs(x[d]));
          }
        }
        args.scales(h) = kv_scale_of(peak, args.most);
      }
    });
  });
}

}  // namespace warprow::cpu
