// SPDX-License-Identifier: Apache-2.0
#include "kernels/low_rank/low_rank.h"

#include "device/cpu/cpu_stream.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/low_rank/low_rank_loops.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace warprow::cpu {
namespace {

constexpr int32_t kColumnBlock = 512;

// The matrices of one product in the bank of a token.
struct Pairs {
  const std::byte* bank;
  const LowRankProduct& product;

  [[nodiscard]] int32_t rank(int32_t part) const {
    return reinterpret_cast<const int32_t*>(bank)[product.first_rank + part];
  }
  [[nodiscard]] const float* a(int32_t part) const {
    return reinterpret_cast<const float*>(bank + product.parts[part].a);
  }
  [[nodiscard]] const float* b(int32_t part) const {
    return reinterpret_cast<const float*>(bank + product.parts[part].b);
  }
};

Pairs pairs_of(const Banks& banks, int32_t bank, const LowRankProduct& product) {
  return {banks.base + bank * banks.bank_bytes, product};
}

float* sums_of(const LowRankSums& sums,
               const LowRankProduct& product,
               int32_t max_rank,
               int64_t tok) {
  return sums.sums + tok * product.num_parts * max_rank;
}

void check(const LowRankProduct& product, const Banks& banks) {
  WR_CHECK(banks.dtype == DType::kF32, "banks on a CPU are float32");
  WR_CHECK(product.num_parts >= 1 && product.num_parts <= kMaxLowRankParts);
}

void shrink(const LowRankShrinkArgs& args, ComputePool& pool) {
  const View<const float, 2> x = args.x.f32();
  const LowRankProduct& product = args.product;
  const auto dots = WR_ISA_PICK(low_rank_dots);
  const auto squares = WR_ISA_PICK(low_rank_squares);
  pool.parallel_for(
      x.shape[0] * product.num_parts, 1, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t t = i / product.num_parts;
          const auto part = static_cast<int32_t>(i % product.num_parts);
          const int32_t bank = args.runs.token_banks[t];
          if (bank < 0) {
            continue;
          }
          const Pairs pairs = pairs_of(args.banks, bank, product);
          dots(pairs.a(part),
               pairs.rank(part),
               x.row(t),
               args.norm.weight.data,
               product.k,
               sums_of(args.sums, product, args.banks.max_rank, t) + part * args.banks.max_rank);
          if (part == 0 && !args.norm.weight.empty()) {
            args.sums.squares[t] = squares(x.row(t), product.k);
          }
        }
      });
}

// Adds columns [first, first + count) of a part to token t.
void add_columns(
    const LowRankExpandArgs& args, int64_t t, int32_t part, int32_t first, int32_t count) {
  const int32_t bank = args.term.runs.token_banks[t];
  if (bank < 0) {
    return;
  }
  const LowRankProduct& product = args.term.product;
  const Pairs pairs = pairs_of(args.term.banks, bank, product);
  const float* from = sums_of(args.term.sums, product, args.term.banks.max_rank, t) +
                      part * args.term.banks.max_rank;
  const int32_t rank = pairs.rank(part);
  float scale = 1.0F;
  if (args.term.normed) {
    scale = 1.0F / std::sqrt(args.term.sums.squares[t] / static_cast<float>(product.k) +
                             args.term.norm_eps);
  }
  const LowRankPart& at = product.parts[part];
  float* y = args.y.f32().row(t - args.first_tok) + at.y_col + first;
  constexpr int32_t kRanks = 64;  // at once
  std::array<float, kRanks> scaled;
  for (int32_t r = 0; r < rank; r += kRanks) {
    const int32_t num = std::min(kRanks, rank - r);
    for (int32_t i = 0; i < num; ++i) {
      scaled[static_cast<size_t>(i)] = from[r + i] * scale;
    }
    WR_ISA_PICK(low_rank_add)(
        pairs.b(part) + int64_t{r} * at.n + first, at.n, scaled.data(), num, count, y);
  }
}

void expand(const LowRankExpandArgs& args, ComputePool& pool) {
  const LowRankProduct& product = args.term.product;
  std::array<int32_t, kMaxLowRankParts + 1> blocks{};
  for (int32_t part = 0; part < product.num_parts; ++part) {
    blocks[static_cast<size_t>(part) + 1] =
        blocks[static_cast<size_t>(part)] + ceil_div(product.parts[part].n, kColumnBlock);
  }
  const int64_t num_blocks = blocks[static_cast<size_t>(product.num_parts)];
  pool.parallel_for(
      args.y.shape[0] * num_blocks, 4, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
        for (int64_t i = begin; i < end; ++i) {
          const auto block = static_cast<int32_t>(i % num_blocks);
          int32_t part = 0;
          while (block >= blocks[static_cast<size_t>(part) + 1]) {
            ++part;
          }
          const int32_t first = (block - blocks[static_cast<size_t>(part)]) * kColumnBlock;
          add_columns(args,
                      args.first_tok + i / num_blocks,
                      part,
                      first,
                      std::min(kColumnBlock, product.parts[part].n - first));
        }
      });
}

void group(const GroupByBankArgs& args) {
  std::array<int32_t, kMaxBanks + 1> counts{};
  const auto place = [&](int32_t bank) {
    return static_cast<size_t>(bank < 0 ? args.num_banks : bank);
  };
  std::fill_n(args.runs.token_banks, args.num_toks, -1);
  for (int32_t b = 0; b < args.num_rows; ++b) {
    const int32_t row = args.idx_mapping[b];
    if (row < 0) {
      continue;
    }
    for (int32_t t = args.query_start_loc[b]; t < args.query_start_loc[b + 1]; ++t) {
      args.runs.token_banks[t] = args.row_banks[row];
    }
  }
  for (int32_t t = 0; t < args.num_toks; ++t) {
    ++counts[place(args.runs.token_banks[t])];
  }
  std::array<int32_t, kMaxBanks + 1> next{};
  int32_t first = 0;
  int32_t num_runs = 0;
  for (int32_t bank = 0; bank <= args.num_banks; ++bank) {
    const int32_t count = counts[static_cast<size_t>(bank)];
    next[static_cast<size_t>(bank)] = first;
    for (int32_t done = 0; done < count; done += kRunToks) {
      args.runs.runs[num_runs++] = {
          bank == args.num_banks ? -1 : bank, first + done, std::min(kRunToks, count - done)};
    }
    first += count;
  }
  for (int32_t t = 0; t < args.num_toks; ++t) {
    args.runs.order[next[place(args.runs.token_banks[t])]++] = t;
  }
  for (const int32_t most = max_bank_runs(args.num_toks, args.num_banks); num_runs < most;) {
    args.runs.runs[num_runs++] = {};
  }
}

}  // namespace

void group_by_bank(Stream& stream, const GroupByBankArgs& args) {
  WR_CHECK(args.num_banks >= 1 && args.num_banks <= kMaxBanks, "{} banks", args.num_banks);
  as_cpu(stream).launch("group_by_bank", [args](ComputePool& /*pool*/) { group(args); });
}

void low_rank_shrink(Stream& stream, const LowRankShrinkArgs& args) {
  check(args.product, args.banks);
  WR_CHECK_EQ(args.x.shape[1], args.product.k);
  as_cpu(stream).launch("low_rank_shrink", [args](ComputePool& pool) { shrink(args, pool); });
}

void low_rank_expand(Stream& stream, const LowRankExpandArgs& args) {
  check(args.term.product, args.term.banks);
  as_cpu(stream).launch("low_rank_expand", [args](ComputePool& pool) { expand(args, pool); });
  if (!args.activated.empty()) {
    cpu::silu_and_mul(stream, {args.y, args.activated});
  }
}

}  // namespace warprow::cpu
