// SPDX-License-Identifier: Apache-2.0
// Compares the ARM kernels of the linear layer with the portable ones on random packed weights of every kind. It runs
// under a cross compiler and an emulator (tools/dev/cross_arm.sh), so it uses no test framework. On a difference it
// prints a line that says where, and exits with 1.
#include "kernels/linear/cpu/panel_kernels.h"
#include "kernels/linear/cpu/panel_layout.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace warprow::cpu {
namespace {

constexpr int32_t kOutputs = 37;
constexpr int32_t kInputs = 768;
constexpr int64_t kRows = 9;

struct Case {
  const char* name;
  PackedKind kind;
  int32_t group;
  int32_t zero_point;
  bool has_bias;
  ScaleForm scales;
  const int8_t* numbers = nullptr;
};
constexpr int8_t kNumbers[] = {
    -128, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 127};
constexpr Case kCases[] = {
    {"f32", PackedKind::kF32, 32, 0, false, ScaleForm::kF16},
    {"f16", PackedKind::kF16, 32, 0, false, ScaleForm::kF16},
    {"bf16", PackedKind::kBF16, 32, 0, false, ScaleForm::kF16},
    {"q4_0", PackedKind::kQ4, 32, 8, false, ScaleForm::kF16},
    {"q4_1", PackedKind::kQ4, 32, 0, true, ScaleForm::kF16},
    {"q5_0", PackedKind::kQ5, 32, 16, false, ScaleForm::kF16},
    {"q8_0", PackedKind::kQ8, 32, 0, false, ScaleForm::kF16},
    {"q8_wide", PackedKind::kQ8, kWideGroup, 0, false, ScaleForm::kF16},
    {"q4_k", PackedKind::kQ4, 32, 0, true, ScaleForm::kSplit},
    {"q5_k", PackedKind::kQ5, 32, 0, true, ScaleForm::kSplit},
    {"q6_k", PackedKind::kQ6, 16, 32, false, ScaleForm::kSplit},
    {"mxfp4", PackedKind::kMxfp4, 32, kMxfp4Zero, false, ScaleForm::kE8M0},
    {"q2_k", PackedKind::kQ2, 16, 0, true, ScaleForm::kSplit},
    {"table", PackedKind::kTable, 32, 0, false, ScaleForm::kF16, kNumbers},
    {"table16", PackedKind::kTable16, 16, 0, false, ScaleForm::kSplit, kNumbers},
};

// Random bytes are valid numbers of every quantised kind. Scales, halves and floats get moderate exponents.
std::vector<std::byte> random_panels(const PackedWeight& w, std::mt19937& rng) {
  const PanelLayout layout = panel_layout(w);
  std::vector<std::byte> bytes(static_cast<size_t>(layout.num_panels * layout.panel_bytes));
  for (std::byte& b : bytes) {
    b = static_cast<std::byte>(rng());
  }
  const bool wide = w.kind == PackedKind::kF32;
  for (int64_t panel = 0; panel < layout.num_panels; ++panel) {
    std::byte* at = bytes.data() + panel * layout.panel_bytes;
    const int64_t from = is_quantised(w.kind) ? layout.scales_offset : 0;
    for (int64_t i = from; i + 1 < layout.panel_bytes; i += wide ? 4 : 2) {
      auto value = static_cast<uint16_t>((rng() & 0x83ffU) |
                                         (wide || w.kind == PackedKind::kBF16 ? 0x3c00U : 0x2000U));
      if (w.scales == ScaleForm::kE8M0) {
        value = static_cast<uint16_t>(0x7474U + (rng() & 0x0707U));
      }
      std::memcpy(at + i + (wide ? 2 : 0), &value, sizeof value);
    }
  }
  return bytes;
}

PanelJob job_of(const PackedWeight& w,
                const std::vector<std::byte>& panels,
                std::vector<float>& y) {
  const PanelLayout layout = panel_layout(w);
  PanelJob job{};
  job.kind = w.kind;
  job.has_bias = w.has_bias;
  job.scales = w.scales;
  job.zero_point = w.zero_point;
  job.group = w.group;
  job.numbers = w.numbers;
  job.scale_unit = w.scale_unit;
  job.k = w.k;
  job.panels = panels.data();
  job.panel_bytes = layout.panel_bytes;
  job.scales_offset = layout.scales_offset;
  job.scale_group_bytes = layout.scale_group_bytes;
  job.split_bytes = layout.split_bytes;
  job.num_panels = layout.num_panels;
  job.num_outputs = w.n;
  job.y = y.data();
  job.y_stride = w.n;
  return job;
}

// One instruction set's results for `rows` rows: float sums, then sums over int8 activations.
std::vector<float> answers(const PanelKernels& kernels,
                           const PackedWeight& w,
                           const std::vector<std::byte>& panels,
                           const std::vector<float>& x,
                           int64_t rows) {
  std::vector<float> y(static_cast<size_t>(kRows * kOutputs));
  PanelJob job = job_of(w, panels, y);
  job.num_rows = rows;
  kernels.float_panels(job, {x.data(), kInputs});
  std::vector<float> all = y;
  std::vector<int8_t> q(x.size());
  std::vector<ActGroup> by32(x.size() / 32);
  std::vector<ActGroup> by16(x.size() / 16);
  std::vector<int8_t> wide_q(x.size());
  std::vector<ActGroup> wide(x.size() / kWideGroup);
  std::vector<uint16_t> halves(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    kernels.quantise_row(x.data() + r * kInputs,
                         kInputs,
                         q.data() + r * kInputs,
                         by32.data() + r * kInputs / 32,
                         by16.data() + r * kInputs / 16);
    kernels.quantise_wide_row(x.data() + r * kInputs,
                              kInputs,
                              wide_q.data() + r * kInputs,
                              wide.data() + r * kInputs / kWideGroup);
    kernels.round_row(x.data() + r * kInputs, kInputs, 32, halves.data() + r * kInputs);
  }
  if (w.kind == PackedKind::kBF16) {
    kernels.bf16_panels(job, {halves.data(), kInputs});
  } else if (is_quantised(w.kind)) {
    const bool is_wide = w.group == kWideGroup;
    const ActGroup* groups = is_wide ? wide.data() : w.group == 16 ? by16.data() : by32.data();
    kernels.int8_panels(job,
                        {is_wide ? wide_q.data() : q.data(), kInputs, groups, kInputs / w.group});
  }
  all.insert(all.end(), y.begin(), y.end());
  return all;
}

bool agree(const Case& c, std::mt19937& rng) {
  PackedWeight w;
  w.kind = c.kind;
  w.group = c.group;
  w.zero_point = c.zero_point;
  w.has_bias = c.has_bias;
  w.scales = c.scales;
  w.numbers = c.numbers;
  w.scale_unit = c.numbers != nullptr ? 0.125F : 1.0F;
  w.n = kOutputs;
  w.k = kInputs;
  const std::vector<std::byte> panels = random_panels(w, rng);
  std::vector<float> x(static_cast<size_t>(kRows * kInputs));
  for (float& f : x) {
    f = static_cast<float>(static_cast<int32_t>(rng() % 2001) - 1000) / 1000.0F;
  }
  for (const int64_t rows : {int64_t{1}, int64_t{3}, kRows}) {
    const std::vector<float> mine = answers(panel_kernels_neon(), w, panels, x, rows);
    const std::vector<float> theirs = answers(panel_kernels_generic(), w, panels, x, rows);
    float largest = 0.0F;
    for (const float f : theirs) {
      largest = std::max(largest, std::abs(f));
    }
    for (size_t i = 0; i < mine.size(); ++i) {
      if (!(std::abs(mine[i] - theirs[i]) <= 1e-5F * largest)) {
        std::printf("%s, %d rows, at %zu: %g, portable %g\n",
                    c.name,
                    static_cast<int>(rows),
                    i,
                    static_cast<double>(mine[i]),
                    static_cast<double>(theirs[i]));
        return false;
      }
    }
  }
  std::printf("%s agrees\n", c.name);
  return true;
}

}  // namespace
}  // namespace warprow::cpu

int main() {
  std::mt19937 rng(3);
  bool good = true;
  for (const auto& c : warprow::cpu::kCases) {
    good = warprow::cpu::agree(c, rng) && good;
  }
  return good ? 0 : 1;
}
