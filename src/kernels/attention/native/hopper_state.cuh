// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/native/hopper_tiles.cuh"
#include "kernels/attention/native/order.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <cuda_bf16.h>
#include <type_traits>

// What a warpgroup of Hopper's prompt kernel computes (hopper_prefill.cuh).
namespace warprow::cuda {
namespace {

// A warpgroup's 64 rows of an item. Lane (g, t) of warp w has rows 16 w + g and 16 w + g + 8, and of every 8
// columns 2 t and 2 t + 1. In parts, `total` has the parts before.
template <int kDim, bool kParts>
struct HopperState {
  using Sizes = HopperSizes<kDim, kParts>;
  static constexpr int kScores = Sizes::kKeys / 2;
  float o[kDim / 2];
  uint32_t weights[Sizes::kKeys / 4];
  float max[2];  // of scores before scaling
  float sum[2];
  int32_t position[2];
  struct Total {
    float o[kDim / 2];
    float max[2];
    float sum[2];
  };
  struct None {};
  std::conditional_t<kParts, Total, None> total;

  [[nodiscard]] static __device__ int32_t packed_row(const HopperItem& item, int i) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    return item.first_row + thread / 32 * 16 + i * 8 + thread % 32 / 4;
  }

  __device__ void start(const NativeParams& p, const HopperItem& item) {
#pragma unroll
    for (float& v : o) {
      v = 0.0F;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max[i] = kNoMax;
      sum[i] = 0.0F;
      position[i] = item.first_position + packed_row(item, i) / p.group;
    }
    if constexpr (kParts) {
#pragma unroll
      for (float& v : total.o) {
        v = 0.0F;
      }
      total.max[0] = total.max[1] = kNoMax;
      total.sum[0] = total.sum[1] = 0.0F;
    }
  }

  // Merges the part's maxima and sums into those of the parts before, and begins the next part. fold_output does the
  // same to the output, with the factors in `by`, when its products are complete.
  __device__ void end_part(PartFactors (&by)[2], float scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      by[r] = merge_part(total.max[r], total.sum[r], max[r], sum_of_lanes(sum[r]), scale);
      max[r] = kNoMax;
      sum[r] = 0.0F;
    }
  }
  __device__ void fold_output(const PartFactors (&by)[2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) {
      total.o[i] = merged(total.o[i], o[i], by[i / 2 % 2]);
    }
  }

  // The thread's values in a slot of scratch: maximum and sum of its two rows; its outputs follow.
  [[nodiscard]] static __device__ float4* slot(const NativeParams& p, int32_t number) {
    return reinterpret_cast<float4*>(p.scratch.partials +
                                     int64_t{number} * prompt_part_floats(kDim)) +
           threadIdx.x;
  }
  // Stores the part's maxima and sums, and begins the next part.
  __device__ void store_part_sums(float4* to) {
    __stcg(to, float4{max[0], sum_of_lanes(sum[0]), max[1], sum_of_lanes(sum[1])});
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max[r] = kNoMax;
      sum[r] = 0.0F;
    }
  }
  static __device__ void store_output(float4* to, const float (&output)[kDim / 2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; i += 4) {
      __stcg(to + (1 + i / 4) * kConsumers,
             float4{output[i], output[i + 1], output[i + 2], output[i + 3]});
    }
  }
  __device__ void store_total(float4* to) const {
    __stcg(to, float4{total.max[0], total.sum[0], total.max[1], total.sum[1]});
    store_output(to, total.o);
  }
  // Merges what an item's pieces have stored in its slots, in order. The first slot has a total.
  __device__ void merge_stored(const NativeParams& p,
                               int32_t first_slot,
                               int32_t slots,
                               float scale) {
    const auto outputs = [](const float4* from, int i) {
      return __ldcg(from + (1 + i / 4) * kConsumers);
    };
    const float4* from = slot(p, first_slot);
    const float4 sums = __ldcg(from);
    total.max[0] = sums.x;
    total.sum[0] = sums.y;
    total.max[1] = sums.z;
    total.sum[1] = sums.w;
#pragma unroll
    for (int i = 0; i < kDim / 2; i += 4) {
      const float4 four = outputs(from, i);
      total.o[i] = four.x;
      total.o[i + 1] = four.y;
      total.o[i + 2] = four.z;
      total.o[i + 3] = four.w;
    }
#pragma unroll 1
    for (int32_t part = 1; part < slots; ++part) {
      from = slot(p, first_slot + part);
      const float4 more = __ldcg(from);
      const PartFactors by[2] = {merge_part(total.max[0], total.sum[0], more.x, more.y, scale),
                                 merge_part(total.max[1], total.sum[1], more.z, more.w, scale)};
#pragma unroll
      for (int i = 0; i < kDim / 2; i += 4) {
        const float4 four = outputs(from, i);
        total.o[i] = merged(total.o[i], four.x, by[0]);
        total.o[i + 1] = merged(total.o[i + 1], four.y, by[0]);
        total.o[i + 2] = merged(total.o[i + 2], four.z, by[1]);
        total.o[i + 3] = merged(total.o[i + 3], four.w, by[1]);
      }
    }
  }

  // Starts the wgmma of a tile's scores; s is complete after wgmma_wait. Operand descriptors are computed once and then
  // advanced: the instructions that compute a descriptor would take as long as a wgmma of 64 keys.
  __device__ static void start_scores(float (&s)[kScores], uint64_t queries, uint64_t keys) {
    wgmma_pin(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int at = step % 4 * 32;
      wgmma(s,
            further_operand(queries, step / 4 * Sizes::kQueryHalfBytes + at),
            further_operand(keys, step / 4 * Sizes::kHalfBytes + at),
            step > 0);
    }
    wgmma_commit();
  }
  // first: the tile is the first of its part (in default mode, of the item), so its products overwrite the output.
  __device__ void start_values(uint64_t values, bool first) {
    wgmma_pin(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Sizes::kKeys / 16; ++step) {
      wgmma<true>(o, weights + step * 4, further_operand(values, step * 2048), step > 0 || !first);
    }
    wgmma_commit();
  }

  // Turns scores into weights, in place and still float32; in parts they are rounded to bf16. Returns in `shrink` the
  // factor for earlier sums.
  __device__ void online_softmax(float (&s)[kScores],
                                 float (&shrink)[2],
                                 const NativeParams& p,
                                 const HopperItem& item,
                                 int32_t first_key,
                                 bool masked) {
    const float scale_log2 = exponent_scale(p.scale, p.soft_cap);
    if (p.soft_cap > 0.0F) {
#pragma unroll
      for (float& v : s) {
        v = to_log2_score(v, scale_log2, p.scale, p.soft_cap);
      }
    }
    if (masked) {
      const int column = first_key + static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int32_t at = position[i / 2 % 2];
        const int32_t high = p.end_key(at, item.seq_len);
        const int32_t low = p.window > 0 ? at - p.window + 1 : 0;
        const int32_t key = column + i / 4 * 8 + i % 2;
        s[i] = key >= low && key < high ? s[i] : -INFINITY;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int n = 0; n < Sizes::kKeys / 8; ++n) {
        top = fmaxf(top, fmaxf(s[n * 4 + 2 * r], s[n * 4 + 2 * r + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
      shrink[r] = shrink_factor(max[r], top, scale_log2);
      max[r] = top;
      const float base = __fmul_rn(top, scale_log2);
      float added = 0.0F;
      float rounded = __fmul_rn(sum[r], shrink[r]);
#pragma unroll
      for (int n = 0; n < Sizes::kKeys / 8; ++n) {
        float& a = s[n * 4 + 2 * r];
        float& b = s[n * 4 + 2 * r + 1];
        a = weight_of(a, scale_log2, base);
        b = weight_of(b, scale_log2, base);
        if constexpr (kParts) {
          const uint32_t two = pack_bf16(a, b);
          rounded = add_weights<KvFormat::kBF16>(rounded, two);
          a = Operands<KvFormat::kBF16>::first_of(two);
          b = Operands<KvFormat::kBF16>::second_of(two);
        } else {
          added += a + b;
        }
      }
      sum[r] = kParts ? rounded : sum[r] * shrink[r] + added;
    }
  }
  // A branch that is never taken but needs the sums of all weights. It keeps the compiler from moving the softmax behind
  // the wait for the products of the values.
  __device__ void finish_weights() const {
    if (sum[0] == -1.0F || sum[1] == -1.0F) {
      __nanosleep(1);
    }
  }
  __device__ void shrink_output(const float (&shrink)[2]) {
    if (!__any_sync(0xffffffffU, shrink[0] != 1.0F || shrink[1] != 1.0F)) {
      return;  // most tiles do not raise the maximum
    }
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) {
      o[i] *= shrink[i / 2 % 2];
    }
  }
  __device__ void round_weights(const float (&s)[kScores]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      // In parts the weights are rounded to bf16 already, so a byte permutation packs two of them.
      weights[i] =
          kParts ? __byte_perm(__float_as_uint(s[2 * i]), __float_as_uint(s[2 * i + 1]), 0x7632)
                 : pack_bf16(s[2 * i], s[2 * i + 1]);
    }
  }

  // Writes a row's output in vectors of 16 bytes. Four lanes exchange their values of 32 columns, so that
  // each has 8 adjacent ones.
  __device__ void write_row(__nv_bfloat16* row, int i, float inverse, bool valid) const {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int d = 0; d < kDim / 8; d += 4) {
      uint32_t v[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int at = (d + c) * 4 + 2 * i;
        if constexpr (kParts) {
          v[c] = pack_bf16(finished(total.o[at], inverse), finished(total.o[at + 1], inverse));
        } else {
          v[c] = pack_bf16(o[at] * inverse, o[at + 1] * inverse);
        }
      }
#pragma unroll
      for (int c = 0; c < 4; c += 2) {
        const uint32_t got = __shfl_xor_sync(0xffffffffU, t % 2 == 0 ? v[c + 1] : v[c], 1);
        (t % 2 == 0 ? v[c + 1] : v[c]) = got;
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t got = __shfl_xor_sync(0xffffffffU, t < 2 ? v[c + 2] : v[c], 2);
        (t < 2 ? v[c + 2] : v[c]) = got;
      }
      if (valid) {
        *reinterpret_cast<uint4*>(row + (d + t) * 8) = uint4{v[0], v[1], v[2], v[3]};
      }
    }
  }

  // The factor of a row's outputs, and its log-sum-exp.
  __device__ Finish finish_row(const NativeParams& p, int32_t head, int i) const {
    const HeadScales scales = head_scales<KvFormat::kBF16>(p, 0);
    if constexpr (kParts) {
      return finish<KvFormat::kBF16>(total.max[i], total.sum[i], scales, p.sinks, head);
    }
    return finish_lanes(max[i], sum[i], scales.exponent, p.sinks, head);
  }

  __device__ void write(const NativeParams& p, const HopperItem& item) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t packed = packed_row(item, i);
      const bool valid = packed < item.num_rows;
      const int32_t query = valid ? packed / p.group : 0;
      const int32_t head = item.kv_head * p.group + (valid ? packed - query * p.group : 0);
      const int64_t token = item.first_token + query;
      const Finish end = finish_row(p, head, i);
      auto* row = static_cast<__nv_bfloat16*>(p.out) + token * p.out_stride + head * kDim;
      write_row(row, i, end.inverse, valid);
      if (valid && p.lse != nullptr && threadIdx.x % 4 == 0) {
        p.lse[token * p.lse_stride + head] = end.lse;
      }
    }
  }
};

// V past seq_len may be NaN, and 0 x NaN = NaN: zero it.
template <int kDim, bool kParts>
__device__ void clear_values(uint32_t stage, int32_t first, int group) {
  using Sizes = HopperSizes<kDim, kParts>;
  for (int i = threadIdx.x % 128; i < (Sizes::kKeys - first) * 8 * Sizes::kHalves; i += 128) {
    const int row = first + i / (8 * Sizes::kHalves);
    const int chunk = i % (8 * Sizes::kHalves);
    clear16(stage + chunk / 8 * Sizes::kHalfBytes + row * 128 + chunk % 8 * 16);
  }
  fence_async_proxy();
  named_sync(2 + group, 128);
}

}  // namespace
}  // namespace warprow::cuda
