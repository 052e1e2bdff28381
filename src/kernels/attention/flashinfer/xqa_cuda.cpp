// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/flashinfer/xqa.h"

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/tensor_map.h"
#include "kernels/attention/flashinfer/params.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace warprow::cuda {

// The kernel instances (cmake/stubs.cmake).
// clang-format off
#define WR_XQA_GROUPS(X, dim) \
  X(dim, 1) X(dim, 2) X(dim, 3) X(dim, 4) X(dim, 5) X(dim, 6) X(dim, 7) X(dim, 8)
#define WR_XQA_INSTANCES(X) WR_XQA_GROUPS(X, 64) WR_XQA_GROUPS(X, 128)
// clang-format on

#define WR_XQA_DECLARE(dim, group)                        \
  cudaError_t xqa_##dim##_##group##_16(const XqaLaunch&); \
  cudaError_t xqa_##dim##_##group##_64(const XqaLaunch&);
WR_XQA_INSTANCES(WR_XQA_DECLARE)

namespace {

constexpr uint32_t kTileTokens = 64;  // maximum number of keys in one TMA load

struct Instance {
  int32_t head_dim, group;
  XqaFunction page_16, page_64;
};
#define WR_XQA_ROW(dim, group) {dim, group, &xqa_##dim##_##group##_16, &xqa_##dim##_##group##_64},
constexpr Instance kInstances[] = {WR_XQA_INSTANCES(WR_XQA_ROW)};

XqaFunction find_xqa(int32_t head_dim, int32_t group, int32_t page_size) {
  for (const Instance& instance : kInstances) {
    if (instance.head_dim == head_dim && instance.group == group) {
      return page_size == 16 ? instance.page_16 : page_size == 64 ? instance.page_64 : nullptr;
    }
  }
  return nullptr;
}

// Tensor map of the cache for the kernel's TMA loads: a box is 64 elements of one head, for up to 64 tokens.
CUtensorMap cache_map(const void* base, const KvLayerView& kv, const DecodeTables& tables) {
  constexpr uint64_t kElement = 2;
  constexpr uint32_t kPartElements = 64;
  const auto of = [](auto size) { return static_cast<uint64_t>(size); };
  const uint32_t tokens = std::min(static_cast<uint32_t>(tables.page_size), kTileTokens);
  return tensor_map<4>(
      base,
      {of(kv.head_dim_k), of(kv.num_kv_heads), of(tables.page_size), uint64_t{1} << 31},
      {of(kv.head_stride) * kElement,
       of(kv.token_stride) * kElement,
       of(tables.page_stride) * kElement},
      {kPartElements, 1, tokens, 1},
      CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

}  // namespace

void xqa_decode(Stream& stream,
                const FlashInferArgs& args,
                const DecodeTables& tables,
                void* partials,
                XqaSplits splits) {
  const KvLayerView& kv = args.kv;
  const int32_t group = args.num_q_heads / kv.num_kv_heads;
  const XqaFunction xqa = find_xqa(kv.head_dim_k, group, tables.page_size);
  WR_CHECK(xqa != nullptr,
           "no decode kernel: head size {}, group {}, page {}",
           kv.head_dim_k,
           group,
           tables.page_size);
  XqaLaunch launch = {};
  launch.k_map = cache_map(kv.k, kv, tables);
  launch.v_map = cache_map(kv.v, kv, tables);
  launch.q = args.q.data;
  launch.out = args.out.data;
  launch.pages = tables.pages;
  launch.lens = tables.lens;
  launch.arrivals = tables.arrivals;
  launch.partials = partials;
  launch.num_rows = static_cast<uint32_t>(args.num_decode_rows);
  launch.num_kv_heads = static_cast<uint32_t>(kv.num_kv_heads);
  launch.max_splits = static_cast<uint32_t>(splits.most);
  launch.tiles_per_split = static_cast<uint32_t>(splits.min_tiles);
  launch.window = std::numeric_limits<int32_t>::max();
  launch.q_scale = args.scale * std::sqrt(static_cast<float>(kv.head_dim_k));
  CudaStream& on = as_cuda(stream);
  launch.stream = on.handle();
  check_cuda(xqa(launch), "xqa_decode", __FILE__, __LINE__);
  on.note_launch("xqa_decode");
}

}  // namespace warprow::cuda
