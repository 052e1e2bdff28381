// SPDX-License-Identifier: Apache-2.0
#include "kernels/embedding/embedding.h"

#include "base/check.h"
#include "base/dtype.h"
#include "device/cpu/cpu_stream.h"
#include "device/cpu/worker_shares.h"
#include "kernels/linear/cpu/panel_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace warprow {
namespace {

// Twice the e2m1 numbers.
constexpr int32_t kTwiceE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

template <typename T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The weights of one output in its panel.
class PanelLane {
 public:
  PanelLane(const PackedWeight& w, int64_t row)
      : w_(w),
        layout_(cpu::panel_layout(w)),
        panel_(w.data + row / cpu::kPanelRows * layout_.panel_bytes),
        lane_(row % cpu::kPanelRows) {}

  void dequantise(float* out) const {
    if (cpu::is_quantised(w_.kind)) {
      for (int64_t g = 0; g < w_.k / w_.group; ++g) {
        dequantise_group(g, out + g * w_.group);
      }
    } else if (w_.kind == PackedKind::kBF16) {
      dequantise_pairs(out);
    } else {
      for (int64_t i = 0; i < w_.k; ++i) {
        out[i] = plain(i);
      }
    }
  }

 private:
  [[nodiscard]] float plain(int64_t i) const {
    const int64_t at = i * cpu::kPanelRows + lane_;
    return w_.kind == PackedKind::kF16 ? f16_to_f32(load<uint16_t>(panel_ + at * 2))
                                       : load<float>(panel_ + at * 4);
  }

  void dequantise_pairs(float* out) const {
    const std::byte* p = panel_ + lane_ * 4;
    int64_t i = 0;
    for (; i + 2 <= w_.k; i += 2, p += cpu::kPanelRows * 4) {
      const auto pair = load<uint32_t>(p);
      out[i] = std::bit_cast<float>(pair << 16);
      out[i + 1] = std::bit_cast<float>(pair & 0xffff0000U);
    }
    if (i < w_.k) {
      out[i] = bf16_to_f32(load<uint16_t>(p));
    }
  }

  // Group g's scale (half 0) or its bias (half 1).
  [[nodiscard]] float factor(int64_t g, int64_t half) const {
    const int64_t lane = half * cpu::kPanelRows + lane_;
    const std::byte* scales = panel_ + layout_.scales_offset;
    if (w_.scales == ScaleForm::kSplit) {
      const int64_t groups = kSplitInputs / w_.group;
      scales += g / groups * layout_.split_bytes;
      const std::byte* factors = scales + (2 + g % groups) * layout_.scale_group_bytes;
      return f16_to_f32(load<uint16_t>(scales + lane * 2)) *
             static_cast<float>(load<int8_t>(factors + lane));
    }
    if (w_.scales == ScaleForm::kE8M0) {
      const uint32_t field = load<uint8_t>(scales + g * layout_.scale_group_bytes + lane);
      return std::bit_cast<float>(field << 23);
    }
    scales += g * layout_.scale_group_bytes;
    return w_.scales == ScaleForm::kF32 ? load<float>(scales + lane * 4)
                                        : f16_to_f32(load<uint16_t>(scales + lane * 2));
  }

  void dequantise_group(int64_t g, float* out) const {
    const float scale = factor(g, 0) * w_.scale_unit;
    const float bias = w_.has_bias ? factor(g, 1) : -0.0F;
    const int64_t bits = cpu::stored_bits(w_.kind);
    const std::byte* q = panel_ + g * w_.group * bits / 8 * cpu::kPanelRows + lane_ * 4;
    if (w_.kind == PackedKind::kQ8) {
      for (int64_t i = 0; i < w_.group; ++i) {
        out[i] = scale * static_cast<float>(load<int8_t>(q + i / 4 * 64 + i % 4)) + bias;
      }
      return;
    }
    if (w_.kind == PackedKind::kQ2) {
      for (int64_t i = 0; i < w_.group; ++i) {
        const int32_t pair = load<uint8_t>(q + i % 4) >> (i / 4 * 2) & 3;
        out[i] = scale * static_cast<float>(pair) + bias;
      }
      return;
    }
    const int64_t half = w_.group / 2;
    const std::byte* plane = q + half / 4 * 64;
    for (int64_t i = 0; i < w_.group; ++i) {
      const int64_t in_half = i % half;
      const auto pair = load<uint8_t>(q + in_half / 4 * 64 + in_half % 4);
      int32_t stored = i < half ? pair & 15 : pair >> 4;
      if (w_.kind == PackedKind::kMxfp4) {
        stored = kMxfp4Zero + kTwiceE2m1[stored];
      } else if (w_.numbers != nullptr) {
        out[i] = scale * static_cast<float>(w_.numbers[stored]) + bias;
        continue;
      }
      if (bits > 4) {
        const int32_t upper = load<uint8_t>(plane + i % 4) >> (i / 4 * (bits - 4));
        stored |= (upper & ((1 << (bits - 4)) - 1)) << 4;
      }
      out[i] = scale * static_cast<float>(stored - w_.zero_point) + bias;
    }
  }

  const PackedWeight& w_;
  cpu::PanelLayout layout_;
  const std::byte* panel_;
  int64_t lane_;
};

void gather(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  const View<float, 2> out = args.out.f32();
  for (int64_t t = begin; t < end; ++t) {
    const int32_t id = args.ids(t) & args.id_mask;
    float* row = out.row(t);
    if (id >= args.first_id && id - args.first_id < args.table.n) {
      PanelLane(args.table, id - args.first_id).dequantise(row);
      if (args.scale != 1.0F) {
        std::for_each_n(row, args.table.k, [&](float& v) { v *= args.scale; });
      }
    } else if (id < 0 && !args.given.empty()) {
      std::copy_n(args.given.row(t), args.table.k, row);
    } else {
      std::fill_n(row, args.table.k, 0.0F);
    }
  }
}

}  // namespace

void cpu::embedding(Stream& stream, const EmbeddingArgs& args) {
  WR_CHECK_EQ(args.ids.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.out.shape[1], args.table.k);
  WR_CHECK(args.given.empty() ||
           (args.given.shape[0] == args.out.shape[0] && args.given.shape[1] == args.table.k));
  if (args.ids.shape[0] == 0) {
    return;
  }
  as_cpu(stream).launch("embedding", [args](ComputePool& pool) {
    constexpr int64_t kGrain = 8;
    cpu::parallel_for_with_affinity(
        pool, args.ids.shape[0], kGrain, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
          gather(args, begin, end);
        });
  });
}

}  // namespace warprow
