// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope/rope_kv_write.h"

#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"
#include "kernels/attention/cpu/kind_of_cache.h"
#include "kernels/rope/rope_kv_write_loops.h"

namespace warprow::cpu {

void rope_kv_write(Stream& stream, const RopeKvWriteArgs& args) {
  const KvLayerView& kv = args.kv;
  const int64_t tokens = args.qkv.shape[0];
  WR_CHECK_EQ(args.qkv.shape[1],
              int64_t{args.num_q_heads + kv.num_kv_heads} * kv.head_dim_k +
                  int64_t{kv.num_kv_heads} * kv.head_dim_v);
  WR_CHECK_EQ(args.slot_mapping.shape[0], tokens);
  WR_CHECK(!is_f8(kv.dtype) || (kv.k_scales != nullptr && kv.v_scales != nullptr));
  WR_CHECK(args.rot_dim % 2 == 0);
  WR_CHECK_LE(args.rot_dim, kv.head_dim_k);
  if (args.rot_dim > 0) {
    WR_CHECK_EQ(args.cos.shape[0], tokens);
    WR_CHECK_EQ(args.sin.shape[0], tokens);
    WR_CHECK_EQ(args.cos.shape[1], args.rot_dim / 2);
    WR_CHECK_EQ(args.sin.shape[1], args.rot_dim / 2);
  }
  if (!args.q_norm.empty()) {
    WR_CHECK_EQ(args.q_norm.shape[0], kv.head_dim_k);
  }
  if (!args.k_norm.empty()) {
    WR_CHECK_EQ(args.k_norm.shape[0], kv.head_dim_k);
  }
  if (!args.v_norm.empty()) {
    WR_CHECK_EQ(args.v_norm.shape[0], kv.head_dim_v);
  }
  const View<float, 2> qkv = args.qkv.f32();
  const RopeKvLoop loop{
      .qkv = qkv.data,
      .qkv_stride = qkv.stride[0],
      .cos = args.cos.data,
      .sin = args.sin.data,
      .cos_stride = args.cos.stride[0],
      .sin_stride = args.sin.stride[0],
      .slots = args.slot_mapping.data,
      .q_norm = args.q_norm.data,
      .k_norm = args.k_norm.data,
      .v_norm = args.v_norm.data,
      .k_cache = kv.k,
      .v_cache = kv.v,
      .k_scales = kv.k_scales,
      .v_scales = kv.v_scales,
      .block_stride = kv.block_stride,
      .head_stride = kv.head_stride,
      .token_stride = kv.token_stride,
      .block_size = kv.block_size,
      .num_q_heads = args.num_q_heads,
      .num_kv_heads = kv.num_kv_heads,
      .head_dim_k = kv.head_dim_k,
      .head_dim_v = kv.head_dim_v,
      .rot_dim = args.rot_dim,
      .norm_eps = args.norm_eps,
      .kind = cache_kind(kv.dtype),
      .interleaved = args.interleaved,
  };
  const auto run_tokens = WR_ISA_PICK(rope_kv_write_tokens);
  as_cpu(stream).launch("rope_kv_write", [loop, tokens, run_tokens](ComputePool& pool) {
    parallel_for_with_affinity(pool, tokens, 8, [&](int64_t begin, int64_t end, int32_t) {
      run_tokens(loop, begin, end);
    });
  });
}

}  // namespace warprow::cpu
