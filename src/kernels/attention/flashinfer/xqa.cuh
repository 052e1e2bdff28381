// SPDX-License-Identifier: Apache-2.0
// One decode kernel. A stub for each instance (cmake/stubs.cmake) sets HEAD_ELEMS, HEAD_GRP_SIZE,
// TOKENS_PER_PAGE and WR_XQA_NAME. mha_sm90.cuh is a patched copy of FlashInfer's csrc/xqa/mha_sm90.cu
// (cmake/patches/flashinfer).
//
// Formula: attention of one query token a row, kernels/attention/paged_attention.h.
// Shapes: q [rows, (group + 2) * kv_heads, head_dim], of which the first group * kv_heads are queries; out
//   [rows, group * kv_heads, head_dim]; pages: DecodeTables.
// Mapping: a CTA for each (row, KV head, split); a warpgroup for scores, one for values, one for TMA loads.
//   The splits of a row take its tiles of 64 keys in turn; the last CTA to arrive merges.
// Bytes moved: each visible key and value once.
// Numerics: bf16 products with float32 sums, probabilities rounded to bf16. The number of splits depends on
//   the number of rows, and so does the order of a row's sums.
// Preconditions: sm_90a; cache values past a row's length are finite (they are multiplied by zero); row
//   lengths and pages were written before the kernel that precedes this one.
// Origin: XQA of TensorRT-LLM, as shipped in FlashInfer 0.7.2.
#define INPUT_FP16 0
#define CACHE_ELEM_ENUM 0
#define SLIDING_WINDOW 1
#define BEAM_WIDTH 1

#include "kernels/attention/flashinfer/xqa.h"

#include <mha_sm90.cuh>

namespace warprow::cuda {

cudaError_t WR_XQA_NAME(const XqaLaunch& l) {
  static const cudaError_t configured = cudaFuncSetAttribute(
      kernel_mha, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SharedMem));
  if (configured != cudaSuccess) {
    return configured;
  }
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1, l.max_splits, l.num_kv_heads * l.num_rows);
  config.blockDim = dim3(warp_size * gmmaWarpsPerGrp, 1, 3);
  config.dynamicSmemBytes = sizeof(SharedMem);
  config.stream = l.stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  const KVCacheList<true> cache{nullptr, nullptr, l.pages, l.lens, 0};
  const float* no_pointer = nullptr;
  return cudaLaunchKernelEx(&config,
                            &kernel_mha,
                            l.num_kv_heads,
                            l.window,
                            l.q_scale,
                            no_pointer,
                            static_cast<OutputHead*>(l.out),
                            static_cast<const IOHead*>(l.q),
                            no_pointer,
                            cache,
                            l.num_rows,
                            static_cast<float>(l.tiles_per_split),
                            no_pointer,
                            l.k_map,
                            l.v_map,
                            l.arrivals,
                            l.partials);
}

}  // namespace warprow::cuda
