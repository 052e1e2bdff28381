// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/gather/gather_rows.h"

// Formula, shapes, preconditions: gather_rows.h. x and out have the same element type, which may be any.
// Mapping: rows are copied in words of 16 bytes, or of 4, 2 or 1 if alignment allows no more; a CTA takes up
//   to 1024 words of one row.
// Bytes moved: 2 * n * width * element.
// Numerics: exact.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWordsAThread = 4;

template <typename Word>
struct Rows {
  const Word* x;
  int64_t x_stride;  // words
  Word* out;
  int64_t out_stride;
  int32_t width;
  const int32_t* index;  // null: every row
};

template <typename Word>
__global__ void __launch_bounds__(kThreads) copy_rows(Rows<Word> a) {
  pdl_wait();
  pdl_release();
  const int32_t source =
      a.index == nullptr ? static_cast<int32_t>(blockIdx.x) : a.index[blockIdx.x];
  const Word* from = a.x + source * a.x_stride;
  Word* to = a.out + blockIdx.x * a.out_stride;
  const int first = static_cast<int>(blockIdx.y * kThreads * kWordsAThread + threadIdx.x);
#pragma unroll
  for (int i = 0; i < kWordsAThread; ++i) {
    const int at = first + i * kThreads;
    if (at < a.width) {
      to[at] = source < 0 ? Word{} : from[at];
    }
  }
}

template <typename Word>
void launch_copy(Stream& stream, const GatherRowsArgs& args) {
  const auto words = [&args](int64_t elements) {
    return elements * static_cast<int64_t>(dtype_bytes(args.x.dtype)) /
           static_cast<int64_t>(sizeof(Word));
  };
  const Rows<Word> rows{.x = static_cast<const Word*>(args.x.data),
                        .x_stride = words(args.x.stride),
                        .out = static_cast<Word*>(args.out.data),
                        .out_stride = words(args.out.stride),
                        .width = static_cast<int32_t>(words(args.x.shape[1])),
                        .index = args.index.data};
  const dim3 grid(static_cast<unsigned>(args.out.shape[0]),
                  static_cast<unsigned>(ceil_div(rows.width, kThreads * kWordsAThread)));
  launch(stream, "gather_rows", {grid, kThreads}, copy_rows<Word>, rows);
}

}  // namespace

void gather_rows(Stream& stream, const GatherRowsArgs& args) {
  WR_CHECK_EQ(args.out.shape[0], args.index.empty() ? args.x.shape[0] : args.index.shape[0]);
  WR_CHECK_EQ(args.out.shape[1], args.x.shape[1]);
  WR_CHECK(args.x.dtype == args.out.dtype);
  if (args.out.shape[0] == 0 || args.x.shape[1] == 0) {
    return;
  }
  const size_t bytes = dtype_bytes(args.x.dtype);
  const auto in_bytes = [bytes](int64_t elements) { return static_cast<size_t>(elements) * bytes; };
  // The lowest set bit of this OR is the common alignment of all sizes and addresses.
  const size_t places = reinterpret_cast<uintptr_t>(args.x.data) |
                        reinterpret_cast<uintptr_t>(args.out.data) | in_bytes(args.x.stride) |
                        in_bytes(args.out.stride) | in_bytes(args.x.shape[1]);
  if (places % 16 == 0) {
    launch_copy<uint4>(stream, args);
  } else if (places % 4 == 0) {
    launch_copy<uint32_t>(stream, args);
  } else if (places % 2 == 0) {
    launch_copy<uint16_t>(stream, args);
  } else {
    launch_copy<uint8_t>(stream, args);
  }
}

}  // namespace warprow::cuda
