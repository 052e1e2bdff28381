// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/rope/rope_table.h"

// Formula, shapes, preconditions: rope_table.h.
// Mapping: a thread an angle, numbered token by token.
// Bytes moved: 8 * T * rot_dim / 2 written.
// Numerics: the angle is a float32 product; its cosine and sine within 2 ulp.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) fill_table(RopeTableArgs a) {
  pdl_wait();
  pdl_release();
  const auto half = static_cast<int32_t>(a.inv_freq.shape[0]);
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t token = at / half;
  const int64_t i = at % half;
  if (token >= a.positions.shape[0]) {
    return;
  }
  float sine = 0.0F;
  float cosine = 0.0F;
  sincosf(static_cast<float>(a.positions(token)) * a.inv_freq(i), &sine, &cosine);
  a.cos(token, i) = cosine * a.scale;
  a.sin(token, i) = sine * a.scale;
}

}  // namespace

void rope_table(Stream& stream, const RopeTableArgs& args) {
  const int64_t tokens = args.positions.shape[0];
  const int64_t half = args.inv_freq.shape[0];
  WR_CHECK_EQ(args.cos.shape[0], tokens);
  WR_CHECK_EQ(args.sin.shape[0], tokens);
  WR_CHECK_EQ(args.cos.shape[1], half);
  WR_CHECK_EQ(args.sin.shape[1], half);
  if (tokens * half == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(tokens * half, kThreads));
  launch(stream, "rope_table", {blocks, kThreads}, fill_table, args);
}

}  // namespace warprow::cuda
