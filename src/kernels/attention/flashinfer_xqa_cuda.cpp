// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/flashinfer_xqa.h"

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/attention/flashinfer_params.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace warprow::cuda {

// The instances; cmake/flashinfer.cmake writes a source for each.
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

constexpr uint32_t kTileTokens = 64;  // keys that one load brings at most

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

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  static const EncodeTiled found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    WR_CUDA(cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result));
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return found;
}

// The cache as the kernel's loads see it: boxes of 64 elements of one head of up to 64 tokens.
CUtensorMap tensor_map(void* base, const KvLayerView& kv, const DecodeTables& tables) {
  constexpr uint64_t kElement = 2;
  constexpr uint32_t kPartElements = 64;  // 128 bytes, the swizzle's width
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(kv.head_dim_k),
                             static_cast<cuuint64_t>(kv.num_kv_heads),
                             static_cast<cuuint64_t>(tables.page_size),
                             cuuint64_t{1} << 31};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(kv.head_stride) * kElement,
                                static_cast<cuuint64_t>(kv.token_stride) * kElement,
                                static_cast<cuuint64_t>(tables.page_stride) * kElement};
  const cuuint32_t box[] = {
      kPartElements, 1, std::min(static_cast<uint32_t>(tables.page_size), kTileTokens), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode_tiled()(&map,
                                         CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                         4,
                                         base,
                                         dims,
                                         strides,
                                         box,
                                         steps,
                                         CU_TENSOR_MAP_INTERLEAVE_NONE,
                                         CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WR_CHECK(result == CUDA_SUCCESS, "no tensor map for the KV cache: {}", static_cast<int>(result));
  return map;
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
  launch.k_map = tensor_map(kv.k, kv, tables);
  launch.v_map = tensor_map(kv.v, kv, tables);
  launch.q = args.q.data;
  launch.out = args.out.data;
  launch.pages = tables.pages;
  launch.lens = tables.lens;
  launch.arrivals = tables.arrivals;
  launch.partials = partials;
  launch.max_pages = static_cast<uint32_t>(tables.max_pages);
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
