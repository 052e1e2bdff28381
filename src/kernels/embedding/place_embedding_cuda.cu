// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/embedding/place_embedding.h"

// Formula, shapes, numerics: place_embedding.h.
// Mapping: a CTA takes 128 columns of one token, a thread one.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

struct Places {
  const int32_t* ids;
  const int32_t* positions;
  const float* positions_table;
  const float* segments_table;
  float* x;
  int64_t x_stride;
  int64_t positions_stride;
  int64_t segments_stride;
  int32_t num_positions;  // 0: no table
  int32_t num_segments;
  int32_t first_position;
  int32_t width;
};

__global__ void __launch_bounds__(kThreads) add_places(Places a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.width) {
    return;
  }
  const int32_t position = a.positions[blockIdx.x] + a.first_position;
  const int32_t segment = a.ids[blockIdx.x] >> kSegmentShift;
  float* at = a.x + blockIdx.x * a.x_stride + column;
  float v = *at;
  if (position >= 0 && position < a.num_positions) {
    v += a.positions_table[position * a.positions_stride + column];
  }
  if (segment >= 0 && segment < a.num_segments) {
    v += a.segments_table[segment * a.segments_stride + column];
  }
  *at = v;
}

}  // namespace

void place_embedding(Stream& stream, const PlaceEmbeddingArgs& args) {
  WR_CHECK_EQ(args.ids.shape[0], args.x.shape[0]);
  WR_CHECK_EQ(args.positions.shape[0], args.x.shape[0]);
  WR_CHECK(args.positions_table.empty() || args.positions_table.shape[1] == args.x.shape[1]);
  WR_CHECK(args.segments_table.empty() || args.segments_table.shape[1] == args.x.shape[1]);
  if (args.x.shape[0] == 0) {
    return;
  }
  const Places places{
      .ids = args.ids.data,
      .positions = args.positions.data,
      .positions_table = args.positions_table.data,
      .segments_table = args.segments_table.data,
      .x = args.x.data,
      .x_stride = args.x.stride[0],
      .positions_stride = args.positions_table.stride[0],
      .segments_stride = args.segments_table.stride[0],
      .num_positions =
          args.positions_table.empty() ? 0 : static_cast<int32_t>(args.positions_table.shape[0]),
      .num_segments =
          args.segments_table.empty() ? 0 : static_cast<int32_t>(args.segments_table.shape[0]),
      .first_position = args.first_position,
      .width = static_cast<int32_t>(args.x.shape[1])};
  const LaunchShape shape{dim3(static_cast<unsigned>(args.x.shape[0]),
                               static_cast<unsigned>(ceil_div(places.width, kThreads))),
                          kThreads};
  launch(stream, "place_embedding", shape, add_places, places);
}

}  // namespace warprow::cuda
