// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/heads/resize_heads.h"

// Formula, shapes, numerics: resize_heads.h. Elements of 2 or 4 bytes.
// Mapping: a CTA has up to 256 adjacent elements of a row of out.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Word>
struct Heads {
  const Word* x;
  int64_t x_stride;
  Word* out;
  int64_t out_stride;
  int32_t from;
  int32_t to;
  int32_t cols;  // of out
};

template <typename Word>
__global__ void __launch_bounds__(kThreads) copy_heads(Heads<Word> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.cols) {
    return;
  }
  const int head = column / a.to;
  const int i = column % a.to;
  a.out[blockIdx.x * a.out_stride + column] =
      i < a.from ? a.x[blockIdx.x * a.x_stride + head * a.from + i] : Word{};
}

template <typename Word>
void launch_copy(Stream& stream, const ResizeHeadsArgs& args) {
  const auto cols = static_cast<int32_t>(args.out.shape[1]);
  const Heads<Word> heads{.x = static_cast<const Word*>(args.x.data),
                          .x_stride = args.x.stride,
                          .out = static_cast<Word*>(args.out.data),
                          .out_stride = args.out.stride,
                          .from = static_cast<int32_t>(args.x.shape[1]) / args.num_heads,
                          .to = cols / args.num_heads,
                          .cols = cols};
  const LaunchShape shape{dim3(static_cast<unsigned>(args.out.shape[0]),
                               static_cast<unsigned>(ceil_div(cols, kThreads))),
                          kThreads};
  launch(stream, "resize_heads", shape, copy_heads<Word>, heads);
}

}  // namespace

void resize_heads(Stream& stream, const ResizeHeadsArgs& args) {
  WR_CHECK_EQ(args.x.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.x.shape[1] % args.num_heads, 0);
  WR_CHECK_EQ(args.out.shape[1] % args.num_heads, 0);
  WR_CHECK(args.x.dtype == args.out.dtype);
  if (args.out.shape[0] == 0) {
    return;
  }
  if (dtype_bytes(args.out.dtype) == 2) {
    launch_copy<uint16_t>(stream, args);
  } else {
    launch_copy<uint32_t>(stream, args);
  }
}

}  // namespace warprow::cuda
