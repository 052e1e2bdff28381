// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/flashinfer/params.h"

#include <algorithm>

// Formula: for a decode row b, lens[b] = seq_lens[b] (0: padding) and pages[pages[b] + p] = the page that
//   holds its tokens [p * page_size, (p + 1) * page_size); arrivals are 0.
// Shapes: DecodeTables.
// Mapping: CTAs over rows and runs of 1024 of a row's pages; threads over pages.
// Bytes moved: 8 per page in use; once per step and KV group.
// Numerics: integers.
// Preconditions: block_size is a multiple of page_size, block_stride of a page's stride.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPagesPerBlock = 1024;

__global__ void __launch_bounds__(kThreads) decode_tables_kernel(AttentionPlanParams p,
                                                                 DecodeTables tables) {
  pdl_wait();
  const int32_t b = blockIdx.x;
  const int32_t row = p.idx_mapping[b];
  const int32_t len = row >= 0 ? p.seq_lens[b] : 0;
  const int32_t pages_per_block = p.block_size / tables.page_size;
  const int32_t table_begin = len > 0 ? p.block_table.begin_of(row) : 0;
  const int32_t begin = tables.max_rows + table_begin * pages_per_block;
  if (blockIdx.y == 0) {
    if (threadIdx.x == 0) {
      tables.pages[b] = begin;
      tables.lens[b] = static_cast<uint32_t>(len);
    }
    for (int32_t h = threadIdx.x; h < p.num_kv_heads; h += kThreads) {
      tables.arrivals[int64_t{b} * p.num_kv_heads + h] = 0;
    }
  }
  const int32_t num_pages = (len + tables.page_size - 1) / tables.page_size;
  const int32_t first = blockIdx.y * kPagesPerBlock;
  const int32_t end = min(num_pages, first + kPagesPerBlock);
  const auto step = static_cast<int32_t>(p.block_stride / tables.page_stride);
  const int32_t* blocks = p.block_table.cells + table_begin;
  int32_t* pages = tables.pages + begin;
  for (int32_t i = first + static_cast<int32_t>(threadIdx.x); i < end; i += kThreads) {
    pages[i] = blocks[i / pages_per_block] * step + i % pages_per_block;
  }
  // The decode kernel reads tables and lengths before it waits for its preceding kernel.
  __threadfence();
}

}  // namespace

void plan_decode_tables(Stream& stream,
                        const AttentionPlanParams& params,
                        const DecodeTables& tables) {
  const auto stretches =
      static_cast<unsigned>((tables.max_pages + kPagesPerBlock - 1) / kPagesPerBlock);
  launch(stream,
         "decode_tables",
         {.grid = dim3(static_cast<unsigned>(params.num_decode_rows), std::max(stretches, 1U)),
          .block = dim3(kThreads)},
         decode_tables_kernel,
         params,
         tables);
}

}  // namespace warprow::cuda
