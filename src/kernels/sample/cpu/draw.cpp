// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/cpu/draw.h"

#include "base/math.h"
#include "kernels/sample/cpu/logprobs.h"
#include "kernels/sample/rules/gumbel.h"
#include "kernels/sample/rules/min_p.h"
#include "kernels/sample/rules/temperature.h"
#include "kernels/sample/sample.h"

#include <algorithm>
#include <limits>

namespace warprow::cpu {
namespace {

constexpr int64_t kAlign = 64;
constexpr int32_t kWholeRow = std::numeric_limits<int32_t>::max();

int64_t worker_bytes(int64_t vocab) {
  const int64_t groups = num_max_groups(static_cast<int32_t>(vocab));
  return round_up<int64_t>(vocab * 8, kAlign) + 2 * round_up<int64_t>(vocab * 4, kAlign) +
         2 * round_up<int64_t>(groups * 4, kAlign);
}

}  // namespace

size_t sample_scratch_bytes(int64_t vocab, int32_t num_workers) {
  return static_cast<size_t>(worker_bytes(vocab) * num_workers + kAlign);
}

WorkerScratch worker_scratch(std::byte* scratch, int64_t vocab, int32_t worker) {
  const auto address = round_up<uintptr_t>(reinterpret_cast<uintptr_t>(scratch), kAlign);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): rounding an address up
  auto* p = reinterpret_cast<std::byte*>(address) + worker_bytes(vocab) * worker;
  const auto take = [&p](int64_t bytes) {
    std::byte* at = p;
    p += round_up<int64_t>(bytes, kAlign);
    return at;
  };
  const int64_t groups = num_max_groups(static_cast<int32_t>(vocab));
  WorkerScratch s{};
  std::byte* const keys = take(vocab * 8);
  s.keys = reinterpret_cast<TokenKey*>(keys);
  s.counts = reinterpret_cast<int32_t*>(keys);
  s.values = reinterpret_cast<float*>(take(vocab * 4));
  s.changed = reinterpret_cast<float*>(take(vocab * 4));
  s.group_max = reinterpret_cast<float*>(take(groups * 4));
  s.group_copy = reinterpret_cast<float*>(take(groups * 4));
  return s;
}

TokenRow row_of(const float* logits,
                int32_t n,
                const RowFacts& facts,
                const SampleLoops& loops,
                const WorkerScratch& scratch) {
  return {logits,
          n,
          facts.max,
          scratch.group_max,
          &loops,
          scratch.keys,
          scratch.values,
          scratch.group_copy};
}

SampleLoops pick_sample_loops() {
  return {WR_ISA_PICK(scan_row),
          WR_ISA_PICK(divide_row),
          WR_ISA_PICK(exp_row),
          WR_ISA_PICK(sum_exp),
          WR_ISA_PICK(count_at_least),
          WR_ISA_PICK(collect_at_least),
          WR_ISA_PICK(draw_gumbel)};
}

double draw_score(const GumbelDraw& d, int32_t token) {
  return gumbel_score(
      d.x[token], {d.seed, d.position, static_cast<RandomPurpose>(d.purpose)}, token);
}

void apply_temperature(TokenRow& row, float temperature, const WorkerScratch& scratch) {
  const float divisor = effective_temperature(temperature);
  if (divisor == 1.0F) {
    return;
  }
  row.loops->divide_row(row.x, row.n, divisor, scratch.changed);
  for (int32_t g = 0; g < num_max_groups(row.n); ++g) {
    scratch.group_max[g] /= divisor;
  }
  row.x = scratch.changed;
  row.max /= divisor;
}

Survivors cut_row(const TokenRow& row, const SampleParams& params) {
  float lower = std::numeric_limits<float>::lowest();  // -inf never survives
  if (params.min_p > 0.0F) {
    lower = std::max(lower, min_p_threshold(row.max, params.min_p));
  }
  const bool use_top_p = params.top_p < 1.0F;
  if (params.top_k > 0 && params.top_k < row.n) {
    const int32_t count = select_top_k(row, params.top_k, lower);
    const TokenKey last = use_top_p ? last_of_top_p(row, count, params.top_p)
                                    : *std::max_element(row.keys, row.keys + count);
    return {{key_value(last), key_id(last)}, count, last};
  }
  if (use_top_p) {
    const TopPSurvivors survivors = top_p_of_row(row, lower, params.top_p);
    const TokenKey last = survivors.last;
    return {{key_value(last), key_id(last)}, survivors.count, last};
  }
  return {{lower, std::numeric_limits<int32_t>::max()}, kWholeRow, 0};
}

int32_t draw_survivor(const TokenRow& row,
                      const Survivors& left,
                      int32_t argmax,
                      const RandomKey& key) {
  const GumbelDraw draw{
      row.x, row.n, argmax, left.cut, key.seed, key.position, static_cast<uint32_t>(key.purpose)};
  if (left.count > kShortList) {
    return row.loops->draw_gumbel(draw);
  }
  int32_t best_id = draw.first;
  double best = draw_score(draw, draw.first);
  for (int32_t i = 0; i < left.count; ++i) {
    const int32_t id = key_id(row.keys[i]);
    if (row.keys[i] > left.last) {
      continue;
    }
    const double score = draw_score(draw, id);
    if (score > best || (score == best && id < best_id)) {
      best = score;
      best_id = id;
    }
  }
  return best_id;
}

double masses_of(const TokenRow& row, const Cut& cut, int32_t argmax, float* mass) {
  mask_others(row, cut, argmax, mass);
  return row.loops->exp_row(mass, row.n, row.max, mass);
}

}  // namespace warprow::cpu
