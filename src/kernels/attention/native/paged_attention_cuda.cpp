// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/paged_attention.h"

#include "device/device.h"
#include "kernels/attention/native/params.h"
#include "kernels/attention/native/scheduled_attention.h"
#include "kernels/attention/plain/plain_attention.h"

#include <algorithm>

namespace warprow::cuda {
namespace {

// CTAs of the decode kernel that fit in an SM's shared memory, for groups of up to 8.
int32_t decode_blocks_per_sm(const DeviceFacts& device, int32_t head_dim) {
  return device.compute_capability >= 90 && head_dim <= 128 ? 2 : 1;
}

bool is_hopper(const DeviceFacts& device) { return device.compute_capability / 10 == 9; }

// Whether sums are in parts, so that several kernels give the same bits. Other GPUs than Hopper have one kernel for
// batch-invariant results. Heads of 256 and 8-bit caches have no kernels for other sums.
bool sums_in_parts(const PagedAttentionArgs& args, const DeviceFacts& device) {
  return is_f8(args.kv.dtype) ||
         ((args.batch_invariant || args.kv.head_dim_k > 128) && is_hopper(device));
}

// Whether decode rows have a kernel with this order of sums.
bool has_decode_kernel(const PagedAttentionArgs& args, const DeviceFacts& device) {
  return is_hopper(device) || !(args.batch_invariant || sums_in_parts(args, device));
}

// Which kernels take which rows. It depends on shapes and the device alone, because CUDA graphs capture it.
struct Split {
  int32_t num_rows = 0;
  int32_t num_decode_rows = 0;
  DecodeChunks chunks = {1, 1};
  int32_t decode_blocks = 0;
  bool by_warps = false;      // decode rows take native_warp_decode
  int64_t prefill_tiles = 0;  // upper bound
  bool wide = false;
  bool hopper = false;
  PromptSplit prompts;  // of the kernel for Hopper
  bool in_parts = false;
};

// Tiles of keys of a prompt item, at most. With a window its first tile may begin before the first query's first key.
int32_t most_prompt_tiles(const PagedAttentionArgs& args, int32_t group) {
  int32_t keys = args.most_prompt_keys;
  if (args.window > 0 && args.causal) {
    keys = std::min(keys, args.window + kPromptRows / group + kPartTile);
  }
  return ceil_div(keys, kPartTile);
}

// Whether the decode rows take the decode kernel: it must support their mask and have room for their chunks. With more
// than 16 (query, head) pairs a row it is slower than the prefill kernels if the rows fill the device (docs/adr/0010).
bool takes_decode_rows(const PagedAttentionArgs& args,
                       const DecodeChunks& chunks,
                       const DeviceFacts& device) {
  const int32_t group = args.num_q_heads / args.kv.num_kv_heads;
  const bool fills_device = args.num_decode_rows * args.kv.num_kv_heads >= device.num_sms;
  const bool is_faster = args.decode_len == 1 || args.decode_len * group <= 16 || !fills_device;
  return is_faster && has_decode_kernel(args, device) && (args.causal || args.decode_len == 1) &&
         args.num_decode_rows * chunks.chunks <= kMaxScheduledRows;
}

// From this number of pieces on native_warp_decode is faster, even with rope in a kernel of its own
// (docs/experiments/attention_cuda.md).
constexpr int64_t kLeastWarpPieces = 1024;

// Pieces of the decode rows, if none is split.
int64_t decode_pieces(const PagedAttentionArgs& args, const Split& split) {
  return int64_t{split.num_decode_rows} * split.chunks.chunks * args.kv.num_kv_heads;
}

bool takes_warp_decode(const PagedAttentionArgs& args, const Split& split) {
  const int32_t group = args.num_q_heads / args.kv.num_kv_heads;
  return split.in_parts && args.kv.head_dim_k <= 128 && split.chunks.queries * group <= 8 &&
         decode_pieces(args, split) >= kLeastWarpPieces;
}

Split split_rows(const PagedAttentionArgs& args, const DeviceFacts& device) {
  const int32_t group = args.num_q_heads / args.kv.num_kv_heads;
  Split split;
  split.num_rows = static_cast<int32_t>(args.seq_lens.shape[0]);
  split.in_parts = sums_in_parts(args, device);
  split.chunks = decode_chunks(group, args.decode_len);
  split.num_decode_rows = takes_decode_rows(args, split.chunks, device) ? args.num_decode_rows : 0;
  const int32_t num_decode_toks = split.num_decode_rows > 0 ? args.num_decode_toks : 0;
  const int32_t per_sm =
      split.chunks.queries * group <= 8 ? decode_blocks_per_sm(device, args.kv.head_dim_k) : 1;
  split.decode_blocks = std::min(kMaxDecodeBlocks, device.num_sms * per_sm);
  split.by_warps = takes_warp_decode(args, split);
  if (split.by_warps) {
    split.decode_blocks = device.num_sms * kDecodeWarpsPerSm;
  }
  const int64_t rows = split.num_rows - split.num_decode_rows;
  if (rows > 0) {
    // Tiles of 128 if the rows fill them and they fill the device. On Hopper it is enough if both are half full, or if there are so
    // many keys that items are split.
    const int64_t query_rows = (args.q.shape[0] - num_decode_toks) * group;
    const int64_t items = query_rows / 128 * args.kv.num_kv_heads;
    if (is_hopper(device) && args.kv.head_dim_k <= 128 && !is_f8(args.kv.dtype)) {
      if (split.in_parts && query_rows >= rows * 16) {
        split.prompts = prompt_split(
            (query_rows + rows * (kPromptRows - 1)) / kPromptRows * args.kv.num_kv_heads,
            most_prompt_tiles(args, group),
            device.num_sms);
      }
      split.hopper =
          split.prompts.pieces > 1 || (query_rows >= rows * 64 && 2 * items >= device.num_sms);
    }
    split.wide =
        split.hopper || (!split.in_parts && query_rows >= rows * 128 && items >= device.num_sms);
    split.prefill_tiles = rows + query_rows / (split.wide ? 128 : 64);
  }
  return split;
}

NativeScratch place_scratch(const PagedAttentionArgs& args) {
  const KvLayerView& kv = args.kv;
  const ScratchLayout layout = native_scratch_layout(kv.num_kv_heads,
                                                     args.num_q_heads / kv.num_kv_heads,
                                                     kv.head_dim_k,
                                                     static_cast<int32_t>(args.seq_lens.shape[0]),
                                                     args.decode_len);
  std::byte* base = args.scratch.data;
  NativeScratch scratch;
  scratch.items = reinterpret_cast<DecodeItem*>(base);
  scratch.counts = reinterpret_cast<DecodeCounts*>(base + layout.counts);
  scratch.arrivals = reinterpret_cast<int32_t*>(base + layout.arrivals);
  scratch.prefill_tiles = reinterpret_cast<int32_t*>(base + layout.prefill_tiles);
  scratch.prompt_arrivals = reinterpret_cast<int32_t*>(base + layout.prompt_arrivals);
  scratch.partials = reinterpret_cast<float*>(base + layout.partials);
  return scratch;
}

void check_args(const ScheduledAttentionArgs& args) {
  const KvLayerView& kv = args.kv;
  const int64_t rows = args.seq_lens.shape[0];
  WR_CHECK(kv.dtype == DType::kBF16 ||
               (is_f8(kv.dtype) && kv.k_scales != nullptr && kv.v_scales != nullptr),
           "KV {}",
           dtype_name(kv.dtype));
  WR_CHECK(kv.head_dim_k == 64 || kv.head_dim_k == 128 || kv.head_dim_k == 256,
           "head size {}",
           kv.head_dim_k);
  WR_CHECK_EQ(kv.head_dim_k, kv.head_dim_v);
  WR_CHECK_EQ(kv.block_size % kSegmentToks, 0);
  WR_CHECK_GT(kv.num_kv_heads, 0);
  WR_CHECK_EQ(args.num_q_heads % kv.num_kv_heads, 0);
  WR_CHECK_LE(args.num_q_heads / kv.num_kv_heads, kMaxGroup);
  WR_CHECK_LE(rows, kMaxScheduledRows);
  WR_CHECK_LE(args.num_decode_rows, rows);
  WR_CHECK_GE(args.decode_len, 1);
  WR_CHECK(args.num_decode_toks >= args.num_decode_rows || args.decode_len > 1,
           "{} decode rows of {} tokens",
           args.num_decode_rows,
           args.num_decode_toks);
  WR_CHECK_EQ(args.idx_mapping.shape[0], rows);
  WR_CHECK_EQ(args.query_start_loc.shape[0], rows + 1);
  WR_CHECK(args.schedule_window == 0 ||
               (args.window > 0 && args.window <= args.schedule_window && args.causal),
           "a window of {} under a schedule for {}",
           args.window,
           args.schedule_window);
  WR_CHECK_GE(args.scratch.shape[0],
              static_cast<int64_t>(native_attention_scratch_bytes(
                  kv, args.num_q_heads, static_cast<int32_t>(rows), args.decode_len)));
}

NativeParams native_params(const ScheduledAttentionArgs& args, const Split& split) {
  const KvLayerView& kv = args.kv;
  const auto element = static_cast<int64_t>(dtype_bytes(kv.dtype));
  NativeParams p = {};
  p.q = args.q.data;
  p.out = args.out.data;
  p.lse = args.lse.data;
  p.sinks = args.sinks.data;
  p.k = reinterpret_cast<char*>(kv.k);
  p.v = reinterpret_cast<char*>(kv.v);
  p.k_scales = kv.k_scales;
  p.v_scales = kv.v_scales;
  p.block_table = args.block_table;
  p.idx_mapping = args.idx_mapping.data;
  p.query_start_loc = args.query_start_loc.data;
  p.seq_lens = args.seq_lens.data;
  p.q_stride = args.q.stride;
  p.out_stride = args.out.stride;
  p.lse_stride = args.lse.stride[0];
  p.block_bytes = kv.block_stride * element;
  p.head_bytes = kv.head_stride * element;
  p.token_bytes = kv.token_stride * element;
  p.scratch = place_scratch(args);
  p.block_size = kv.block_size;
  p.num_kv_heads = kv.num_kv_heads;
  p.group = args.num_q_heads / kv.num_kv_heads;
  p.decode_pairs = split.chunks.queries * p.group;
  const uint64_t tiles = kv.block_size / kDecodeTile;
  p.tiles_reciprocal =
      tiles == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + tiles - 1) / tiles);
  p.first_prefill_row = split.num_decode_rows;
  p.num_rows = split.num_rows;
  p.prompt_split = split.prompts;
  p.schedule_window = args.schedule_window;
  p.window = args.window;
  p.scale = args.scale;
  p.soft_cap = args.soft_cap;
  p.causal = args.causal;
  p.settled = args.settled;
  p.in_parts = split.in_parts;
  if (args.rope != nullptr) {
    const RopeKvWriteArgs& rope = *args.rope;
    p.rope = {.on = true,
              .writes_kv = rope.kv.num_kv_heads > 0,
              .cos = rope.cos.data,
              .sin = rope.sin.data,
              .cos_stride = rope.cos.stride[0],
              .sin_stride = rope.sin.stride[0],
              .q_norm = rope.q_norm.data,
              .k_norm = rope.k_norm.data,
              .v_norm = rope.v_norm.data,
              .rot_dim = rope.rot_dim,
              .norm_eps = rope.norm_eps};
  }
  return p;
}

// With more pieces a CTA than this the kernel of its own is faster (docs/experiments/attention_cuda.md).
constexpr int64_t kMostRopedPieces = 6;

bool takes_rope(const PagedAttentionArgs& args, const Split& split, const RopeKvWriteArgs& rope) {
  return split.in_parts && !split.by_warps && split.num_decode_rows > 0 &&
         split.num_decode_rows == split.num_rows &&
         decode_pieces(args, split) <= kMostRopedPieces * split.decode_blocks &&
         args.kv.dtype == DType::kBF16 && !rope.interleaved && rope_fits_vectors(rope);
}

// The decode rows, then the others.
template <int kDim>
void launch_parts(Stream& stream, const NativeParams& params, const Split& split) {
  const DeviceFacts& device = stream.device().facts();
  if (split.by_warps) {
    native_warp_decode<kDim, KvFormat::kBF16>(stream, params, split.decode_blocks);
  } else if (split.num_decode_rows > 0 && split.in_parts) {
    native_part_decode<kDim, KvFormat::kBF16>(stream, params, split.decode_blocks);
  } else if (split.num_decode_rows > 0 && is_hopper(device)) {
    native_decode<kDim, true>(stream, params, split.decode_blocks);
  } else if (split.num_decode_rows > 0) {
    native_decode<kDim, false>(stream, params, split.decode_blocks);
  }
  if (split.hopper) {
    native_hopper_prefill<kDim>(stream, params, device.num_sms);
  } else if (split.prefill_tiles > 0) {
    native_prefill<kDim, KvFormat::kBF16>(stream, params, split.prefill_tiles, split.wide);
  }
}

// The same, for caches and head sizes that have kernels for sums in parts alone.
template <int kDim, KvFormat kFormat>
void launch_in_parts(Stream& stream, const NativeParams& params, const Split& split) {
  if (split.by_warps) {
    if constexpr (kDim <= 128) {
      native_warp_decode<kDim, kFormat>(stream, params, split.decode_blocks);
    }
  } else if (split.num_decode_rows > 0) {
    native_part_decode<kDim, kFormat>(stream, params, split.decode_blocks);
  }
  if (split.prefill_tiles > 0) {
    native_prefill<kDim, kFormat>(stream, params, split.prefill_tiles, split.wide);
  }
}

template <KvFormat kFormat>
void launch_f8(Stream& stream, const NativeParams& params, const Split& split, int32_t head_dim) {
  switch (head_dim) {
    case 64:
      return launch_in_parts<64, kFormat>(stream, params, split);
    case 128:
      return launch_in_parts<128, kFormat>(stream, params, split);
    default:
      return launch_in_parts<256, kFormat>(stream, params, split);
  }
}

}  // namespace

void attention_schedule(Stream& stream, const ScheduledAttentionArgs& args) {
  if (stream.discards()) {
    return;
  }
  const Split split = split_rows(args, stream.device().facts());
  ScheduleParams p = {};
  p.block_table = args.block_table;
  p.idx_mapping = args.idx_mapping.data;
  p.query_start_loc = args.query_start_loc.data;
  p.seq_lens = args.seq_lens.data;
  p.scratch = place_scratch(args);
  p.num_rows = split.num_rows;
  p.num_decode_rows = split.num_decode_rows;
  p.decode_len = args.decode_len;
  p.chunks = split.chunks;
  p.num_kv_heads = args.kv.num_kv_heads;
  p.group = args.num_q_heads / args.kv.num_kv_heads;
  p.window = args.schedule_window;
  p.num_blocks = split.decode_blocks;
  p.prefill_rows_per_tile = split.wide ? 128 : 64;
  p.in_parts = split.in_parts;
  native_schedule(stream, p);
}

void attention_forward(Stream& stream, const ScheduledAttentionArgs& args) {
  check_args(args);
  WR_CHECK(args.q.dtype == DType::kBF16 && args.out.dtype == DType::kBF16,
           "bf16 activations wanted");
  WR_CHECK_EQ(args.q.shape[1], int64_t{args.num_q_heads} * args.kv.head_dim_k);
  WR_CHECK_EQ(args.out.shape[1], args.q.shape[1]);
  const DeviceFacts& device = stream.device().facts();
  const Split split = split_rows(args, device);
  WR_CHECK(args.rope == nullptr ||
           (takes_rope(args, split, *args.rope) && args.q.data == args.rope->qkv.data));
  if (stream.discards()) {
    return;
  }
  const NativeParams params = native_params(args, split);
  WR_CHECK(args.kv.head_dim_k <= 128 || is_hopper(device),
           "heads of 256 on a GPU other than Hopper");
  if (args.kv.dtype == DType::kF8E4M3) {
    return launch_f8<KvFormat::kE4M3>(stream, params, split, args.kv.head_dim_k);
  }
  if (args.kv.dtype == DType::kF8E5M2) {
    return launch_f8<KvFormat::kE5M2>(stream, params, split, args.kv.head_dim_k);
  }
  switch (args.kv.head_dim_k) {
    case 64:
      return launch_parts<64>(stream, params, split);
    case 128:
      return launch_parts<128>(stream, params, split);
    default:
      return launch_in_parts<256, KvFormat::kBF16>(stream, params, split);
  }
}

bool attention_takes_rope(const DeviceFacts& device,
                          const ScheduledAttentionArgs& args,
                          const RopeKvWriteArgs& rope) {
  return takes_rope(args, split_rows(args, device), rope);
}

void paged_attention(Stream& stream, const PagedAttentionArgs& args) {
  if (args.kv.dtype == DType::kF32) {
    return plain_attention(stream, args);
  }
  const ScheduledAttentionArgs scheduled{args, args.causal ? args.window : 0};
  attention_schedule(stream, scheduled);
  attention_forward(stream, scheduled);
}

}  // namespace warprow::cuda
