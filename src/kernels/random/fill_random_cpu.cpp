// SPDX-License-Identifier: Apache-2.0
#include "kernels/random/fill_random.h"

#include "base/dtype.h"
#include "base/math.h"
#include "device/cpu/cpu_stream.h"

#include <algorithm>

namespace warprow::cpu {

void fill_random(Stream& stream, const FillRandomArgs& args) {
  as_cpu(stream).launch("fill_random", [args](ComputePool& pool) {
    pool.parallel_for(
        ceil_div<int64_t>(args.n, 4), 4096, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
          for (int64_t quad = begin; quad < end; ++quad) {
            float v[4];
            random_quad(args.seed, quad, args.scale, v);
            for (int64_t i = 0; i < std::min<int64_t>(4, args.n - 4 * quad); ++i) {
              args.dst[4 * quad + i] = f32_to_bf16(v[i]);
            }
          }
        });
  });
}

}  // namespace warprow::cpu
