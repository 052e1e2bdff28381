// SPDX-License-Identifier: Apache-2.0
#include "kernels/embedding/place_embedding.h"

#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"

namespace warprow::cpu {
namespace {

void add_row(const View<const float, 2>& table, int64_t row, int64_t width, float* x) {
  if (row < 0 || row >= table.shape[0]) {
    return;
  }
  const float* from = table.row(row);
  for (int64_t i = 0; i < width; ++i) {
    x[i] += from[i];
  }
}

}  // namespace

void place_embedding(Stream& stream, const PlaceEmbeddingArgs& args) {
  const int64_t width = args.x.shape[1];
  WR_CHECK_EQ(args.ids.shape[0], args.x.shape[0]);
  WR_CHECK_EQ(args.positions.shape[0], args.x.shape[0]);
  WR_CHECK(args.positions_table.empty() || args.positions_table.shape[1] == width);
  WR_CHECK(args.segments_table.empty() || args.segments_table.shape[1] == width);
  as_cpu(stream).launch("place_embedding", [args, width](ComputePool& pool) {
    parallel_for_with_affinity(
        pool, args.x.shape[0], 16, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
          for (int64_t t = begin; t < end; ++t) {
            add_row(args.positions_table,
                    int64_t{args.positions(t)} + args.first_position,
                    width,
                    args.x.row(t));
            add_row(args.segments_table, args.ids(t) >> kSegmentShift, width, args.x.row(t));
          }
        });
  });
}

}  // namespace warprow::cpu
