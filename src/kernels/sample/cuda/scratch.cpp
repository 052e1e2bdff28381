// SPDX-License-Identifier: Apache-2.0
// Plain arithmetic, kept out of the CUDA files, so that a build without CUDA can plan for a GPU.
#include "base/math.h"
#include "kernels/sample/cuda/stages.h"
#include "kernels/sample/sample.h"

namespace warprow::cuda {
namespace {

constexpr int64_t kAlign = 256;

// Calls take(bytes) for each array in order, and sets the array to the result.
template <typename Take>
SampleScratch lay_out(int64_t vocab, int64_t rows, const Take& take) {
  SampleScratch s{};
  s.num_tiles = num_tiles(vocab);
  s.mask_words = static_cast<int32_t>(ceil_div<int64_t>(vocab, 32));
  s.changed_stride = round_up<int64_t>(vocab, 4);
  const int64_t groups = rows * s.num_tiles * kTileThreads;
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  const int64_t tiles = rows * s.num_tiles;
  s.tiles = reinterpret_cast<TileResult*>(take(tiles * static_cast<int64_t>(sizeof(TileResult))));
  s.masses = reinterpret_cast<TileMasses*>(take(tiles * static_cast<int64_t>(sizeof(TileMasses))));
  s.raw_group_max = reinterpret_cast<float*>(take(groups * float_bytes));
  s.group_max = reinterpret_cast<float*>(take(groups * float_bytes));
  s.prompt_mask = reinterpret_cast<uint32_t*>(take(rows * s.mask_words * float_bytes));
  s.changed = reinterpret_cast<float*>(take(rows * s.changed_stride * float_bytes));
  const auto take_rows = [&]<typename T>(T*& array) {
    array = reinterpret_cast<T*>(take(rows * static_cast<int64_t>(sizeof(T))));
  };
  take_rows(s.drafts.positions);
  take_rows(s.drafts.tokens);
  take_rows(s.drafts.logprobs);
  take_rows(s.drafts.ranks);
  take_rows(s.drafts.errors);
  return s;
}

}  // namespace

SampleScratch cut_sample_scratch(std::byte* scratch, int64_t vocab, int64_t rows) {
  const auto address = round_up<uintptr_t>(reinterpret_cast<uintptr_t>(scratch), kAlign);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): rounding an address up
  auto* at = reinterpret_cast<std::byte*>(address);
  return lay_out(vocab, rows, [&at](int64_t bytes) {
    std::byte* const begin = at;
    at += round_up(bytes, kAlign);
    return begin;
  });
}

size_t sample_scratch_bytes(int64_t vocab, int64_t max_rows) {
  int64_t total = kAlign;
  lay_out(vocab, max_rows, [&total](int64_t bytes) {
    total += round_up(bytes, kAlign);
    return static_cast<std::byte*>(nullptr);
  });
  return static_cast<size_t>(total);
}

}  // namespace warprow::cuda
