// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/h200_costs.h"

#include <utility>

namespace warprow {
namespace {

constexpr double kContext = 256;       // of the rows "decode"
constexpr double kLongContext = 2112;  // of "batch 32, context 2048"
constexpr double kLongBatch = 32;
constexpr double kFirstTokenLen = 1024;
constexpr double kStepTokens = 8192;

// The figures of one model in docs/performance.md.
struct Figures {
  const char* name;
  const char* model;
  std::vector<std::pair<double, double>> decode_ms;  // by batch
  double long_context_ms;
  double first_token_ms;
  double prefill_ktok_s;
  double host_us;
};

CostTable table_of(const Figures& figures) {
  double short_ms = 0;
  for (const auto& [batch, ms] : figures.decode_ms) {
    short_ms = batch == kLongBatch ? ms : short_ms;
  }
  const double context_ns =
      1e6 * (figures.long_context_ms - short_ms) / (kLongBatch * (kLongContext - kContext));
  CostTable table;
  table.model = figures.model;
  table.machine = "NVIDIA H200, bf16, docs/performance.md";
  std::vector<CostCurve::Point> decode;
  decode.reserve(figures.decode_ms.size());
  for (const auto& [batch, ms] : figures.decode_ms) {
    decode.push_back({batch, 1e3 * ms - 1e-3 * context_ns * batch * kContext});
  }
  // A step of up to 512 prompt tokens was not measured: it counts as one that decodes as many.
  std::vector<CostCurve::Point> prefill = decode;
  prefill.push_back({kFirstTokenLen, 1e3 * figures.first_token_ms});
  prefill.push_back({kStepTokens, 1e3 * kStepTokens / figures.prefill_ktok_s});
  table.prefill_us = CostCurve(std::move(prefill));
  table.decode_us = CostCurve(std::move(decode));
  table.decode_context_ns = CostCurve({{1, context_ns}});
  table.host_us = figures.host_us;
  return table;
}

}  // namespace

std::vector<NamedCosts> h200_costs() {
  const Figures all[] = {
      {.name = "h200-qwen3-0.6b",
       .model = "Qwen3-0.6B",
       .decode_ms = {{1, 0.70}, {8, 0.82}, {32, 1.01}, {128, 2.13}, {256, 3.27}, {512, 5.50}},
       .long_context_ms = 2.59,
       .first_token_ms = 3.16,
       .prefill_ktok_s = 451,
       .host_us = 35.1},
      {.name = "h200-qwen3-8b",
       .model = "Qwen3-8B",
       .decode_ms = {{1, 3.87}, {8, 4.16}, {32, 4.49}, {128, 6.59}, {256, 9.98}, {512, 17.76}},
       .long_context_ms = 6.46,
       .first_token_ms = 24.12,
       .prefill_ktok_s = 43.2,
       .host_us = 40.7},
  };
  std::vector<NamedCosts> tables;
  for (const Figures& figures : all) {
    tables.push_back({figures.name, table_of(figures)});
  }
  return tables;
}

}  // namespace warprow
