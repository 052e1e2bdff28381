// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool/mean_rows.h"

#include "device/cpu/cpu_stream.h"

#include <algorithm>

namespace warprow::cpu {
namespace {

constexpr int64_t kColumns = 64;  // whose sums are kept at once

void mean_of(const View<const float, 2>& x, int64_t begin, int64_t end, float* out) {
  const int64_t width = x.shape[1];
  double sums[kColumns];
  for (int64_t first = 0; first < width; first += kColumns) {
    const int64_t count = std::min(kColumns, width - first);
    std::fill_n(sums, kColumns, 0.0);
    for (int64_t t = begin; t < end; ++t) {
      const float* from = x.row(t) + first;
      for (int64_t i = 0; i < count; ++i) {
        sums[i] += double{from[i]};
      }
    }
    const auto divisor = static_cast<double>(std::max<int64_t>(1, end - begin));
    for (int64_t i = 0; i < count; ++i) {
      out[first + i] = static_cast<float>(sums[i] / divisor);
    }
  }
}

}  // namespace

void mean_rows(Stream& stream, const MeanRowsArgs& args) {
  WR_CHECK_EQ(args.starts.shape[0], args.out.shape[0] + 1);
  WR_CHECK_EQ(args.out.shape[1], args.x.shape[1]);
  const View<const float, 2> x = args.x.f32();
  as_cpu(stream).launch("mean_rows", [args, x](ComputePool& pool) {
    pool.parallel_for(args.out.shape[0], 1, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t r = begin; r < end; ++r) {
        mean_of(x, args.starts(r), args.starts(r + 1), args.out.row(r));
      }
    });
  });
}

}  // namespace warprow::cpu
