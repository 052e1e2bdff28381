// SPDX-License-Identifier: Apache-2.0
#include "kernels/random/fill_random.h"

#include "base/math.h"
#include "device/cpu/cpu_stream.h"

#include <algorithm>

namespace warprow::cpu {

void fill_random(Stream& stream, const FillRandomArgs& args) {
  as_cpu(stream).launch("fill_random", [args](ComputePool& pool) {
    const auto fill = [&args](int64_t at, int64_t first, int64_t n) {
      const int64_t from = args.first + first;
      if (args.type == DType::kF32) {
        random_run(args.seed, from, n, args.scale, static_cast<float*>(args.dst) + at);
      } else {
        random_run(args.seed, from, n, args.scale, static_cast<uint16_t*>(args.dst) + at);
      }
    };
    if (args.cols == 0) {
      constexpr int64_t kPiece = 4;
      pool.parallel_for(ceil_div<int64_t>(args.n, kPiece),
                        4096,
                        [&](int64_t begin, int64_t end, int32_t /*worker*/) {
                          const int64_t at = begin * kPiece;
                          fill(at, at, std::min(end * kPiece, args.n) - at);
                        });
      return;
    }
    pool.parallel_for(args.n / args.cols, 16, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t row = begin; row < end; ++row) {
        fill(row * args.cols, row * args.stride, args.cols);
      }
    });
  });
}

}  // namespace warprow::cpu
