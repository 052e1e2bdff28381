// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/low_rank/low_rank.h"
#include "kernels/low_rank/low_rank_pack.h"
#include "tests/support/gated_case.h"
#include "tests/support/op_case.h"

#include <cmath>
#include <vector>

namespace warprow::testing {

// Tokens of a row of the batch. bank -1: the row has none.
struct LowRankRow {
  int32_t num_toks = 1;
  int32_t bank = -1;
};

// group_by_bank, low_rank_shrink and low_rank_expand of one product.
struct LowRankCase {
  DType dtype = DType::kF32;  // of the banks, and of x unless it is normed
  DType y_type = DType::kF32;
  int32_t k = 64;
  std::vector<int32_t> widths{64};  // outputs of the parts
  std::vector<int32_t> ranks{16};   // of bank b and part p: [(b + p) % size]
  int32_t num_banks = 3;
  int32_t max_rank = 32;
  std::vector<LowRankRow> rows;
  int32_t num_padding_toks = 0;  // behind those of the rows, with a padding row
  bool normed = false;
  bool gated = false;  // two parts of equal width; y is read, the result is silu(gate) * up

  static constexpr float kScale = 0.5F;
  static constexpr float kEps = 1e-5F;

  [[nodiscard]] int32_t num_toks() const {
    int32_t toks = num_padding_toks;
    for (const LowRankRow& row : rows) {
      toks += row.num_toks;
    }
    return toks;
  }
  [[nodiscard]] int32_t num_parts() const { return static_cast<int32_t>(widths.size()); }
  [[nodiscard]] int32_t width() const {
    int32_t sum = 0;
    for (const int32_t n : widths) {
      sum += n;
    }
    return sum;
  }
  [[nodiscard]] int32_t rank(int32_t bank, int32_t part) const {
    return ranks[static_cast<size_t>(bank + part) % ranks.size()];
  }
  [[nodiscard]] DType x_type() const { return normed ? DType::kF32 : dtype; }

  // [T, k], [k], and of a bank's part A [rank, k], B [n, rank].
  [[nodiscard]] std::vector<float> x() const {
    return rounded_to(x_type(), normals(size_of(num_toks(), k), 5, normed ? 3.0F : 1.0F));
  }
  [[nodiscard]] std::vector<float> norm_weight() const {
    return normed ? normals(static_cast<size_t>(k), 6, 0.2F, 1.0F) : std::vector<float>();
  }
  [[nodiscard]] std::vector<float> a(int32_t bank, int32_t part) const {
    return rounded_to(dtype,
                      normals(size_of(rank(bank, part), k),
                              seed(bank, part),
                              1.0F / std::sqrt(static_cast<float>(k))));
  }
  [[nodiscard]] std::vector<float> b(int32_t bank, int32_t part) const {
    return rounded_to(dtype,
                      normals(size_of(widths[static_cast<size_t>(part)], rank(bank, part)),
                              seed(bank, part) + 1,
                              1.0F));
  }
  // What y holds before: [T, width].
  [[nodiscard]] std::vector<float> y() const {
    return rounded_to(y_type, normals(size_of(num_toks(), width()), 7));
  }
  // The bank of each token.
  [[nodiscard]] std::vector<int32_t> token_banks() const {
    std::vector<int32_t> banks;
    for (const LowRankRow& row : rows) {
      banks.insert(banks.end(), static_cast<size_t>(row.num_toks), row.bank);
    }
    banks.resize(static_cast<size_t>(num_toks()), -1);
    return banks;
  }

  struct Args {
    GroupByBankArgs group;
    LowRankShrinkArgs shrink;
    LowRankExpandArgs expand;

    void run(Stream& stream) const {
      group_by_bank(stream, group);
      low_rank_shrink(stream, shrink);
      low_rank_expand(stream, expand);
    }
    [[nodiscard]] const ActView& result() const {
      return expand.activated.empty() ? expand.y : expand.activated;
    }
  };

  // Tokens [first, first + count) of x and y with these rows, as part of this case or alone.
  [[nodiscard]] Args args(CaseMemory& memory) const { return args(memory, x(), y()); }
  [[nodiscard]] Args args(CaseMemory& memory,
                          const std::vector<float>& x_values,
                          const std::vector<float>& y_values) const {
    Args out;
    const int32_t toks = num_toks();
    LowRankProduct product;
    product.k = k;
    product.num_parts = num_parts();
    Banks banks{.num_banks = num_banks, .max_rank = max_rank, .dtype = dtype};
    banks.bank_bytes = 256;
    int32_t column = 0;
    for (int32_t p = 0; p < num_parts(); ++p) {
      LowRankPart& part = product.parts[p];
      part.n = widths[static_cast<size_t>(p)];
      part.y_col = column;
      column += part.n;
      part.a = banks.bank_bytes;
      banks.bank_bytes += aligned(low_rank_a_bytes(dtype, max_rank, k));
      part.b = banks.bank_bytes;
      banks.bank_bytes += aligned(low_rank_b_bytes(dtype, max_rank, part.n));
    }
    std::vector<std::byte> bytes(static_cast<size_t>(banks.bank_bytes * num_banks));
    for (int32_t bank = 0; bank < num_banks; ++bank) {
      std::byte* to = bytes.data() + bank * banks.bank_bytes;
      for (int32_t p = 0; p < num_parts(); ++p) {
        const int32_t stored = stored_rank(dtype, rank(bank, p));
        std::memcpy(to + p * sizeof(int32_t), &stored, sizeof(stored));
        pack_low_rank_a(dtype, rank(bank, p), k, a(bank, p).data(), to + product.parts[p].a);
        pack_low_rank_b(dtype,
                        rank(bank, p),
                        product.parts[p].n,
                        b(bank, p).data(),
                        kScale,
                        to + product.parts[p].b);
      }
    }
    banks.base = memory.put(bytes);

    std::vector<int32_t> mapping;
    std::vector<int32_t> starts{0};
    std::vector<int32_t> row_banks;
    for (const LowRankRow& row : rows) {
      mapping.push_back(static_cast<int32_t>(row_banks.size()));
      row_banks.push_back(row.bank);
      starts.push_back(starts.back() + row.num_toks);
    }
    if (num_padding_toks > 0) {
      mapping.push_back(-1);
      starts.push_back(toks);
    }
    BankRuns runs;
    runs.token_banks = memory.put(std::vector<int32_t>(static_cast<size_t>(toks), 77));
    runs.order = memory.put(std::vector<int32_t>(static_cast<size_t>(toks), 77));
    runs.runs = memory.put(std::vector<BankRun>(static_cast<size_t>(max_bank_runs(toks, num_banks)),
                                                BankRun{7, 7, 7}));
    LowRankSums sums;
    const auto chunks = static_cast<size_t>(low_rank_cut(dtype, k).num_chunks);
    sums.num_toks = toks;
    sums.sums = memory.put(std::vector<float>(
        chunks * static_cast<size_t>(toks * num_parts() * max_rank), kCasePoison));
    sums.squares = memory.put(
        std::vector<float>(static_cast<size_t>(half_norm_squares(toks, k)), kCasePoison));

    out.group = {memory.put(mapping),
                 memory.put(starts),
                 memory.put(row_banks),
                 static_cast<int32_t>(mapping.size()),
                 toks,
                 num_banks,
                 runs};
    const std::vector<float> weight = norm_weight();
    out.shrink.x = ActView(x_type(), memory.put_as(x_type(), x_values), toks, k);
    if (normed) {
      out.shrink.norm.weight = make_view<const float>(memory.put(weight), k);
      if (dtype == DType::kBF16) {
        const std::vector<float> rows(size_of(toks, k), kCasePoison);
        out.shrink.norm.rows = {dtype, memory.put_as(dtype, rows), toks, k};
        out.shrink.norm.squares = sums.squares;
        out.shrink.norm.begun = false;
      }
    }
    out.shrink.product = product;
    out.shrink.banks = banks;
    out.shrink.runs = runs;
    out.shrink.sums = sums;
    out.expand.term = {product, banks, runs, sums, normed, kEps};
    out.expand.y = {y_type, memory.put_as(y_type, y_values), toks, width()};
    if (gated) {
      const int64_t n = widths.front();
      out.expand.activated = {
          dtype, memory.put_as(dtype, std::vector<float>(size_of(toks, n), kCasePoison)), toks, n};
    }
    return out;
  }

  // The rows of a matrix with `cols` columns that are the tokens of a row of the batch.
  [[nodiscard]] std::vector<float> slice(const std::vector<float>& all,
                                         int32_t row,
                                         int64_t cols) const {
    int64_t first = 0;
    for (int32_t i = 0; i < row; ++i) {
      first += rows[static_cast<size_t>(i)].num_toks;
    }
    const int64_t count = rows[static_cast<size_t>(row)].num_toks;
    return {all.begin() + first * cols, all.begin() + (first + count) * cols};
  }

  // [T, width], or [T, widths[0]] with `gated`.
  [[nodiscard]] std::vector<double> reference() const {
    const std::vector<float> in = x();
    const std::vector<float> weight = norm_weight();
    const std::vector<float> before = y();
    const std::vector<int32_t> banks = token_banks();
    std::vector<double> sums(before.begin(), before.end());
    for (int32_t bank = 0; bank < num_banks; ++bank) {
      int32_t column = 0;
      for (int32_t p = 0; p < num_parts(); ++p) {
        const std::vector<float> a_values = a(bank, p);
        const std::vector<float> b_values = b(bank, p);
        const int32_t r = rank(bank, p);
        const int32_t n = widths[static_cast<size_t>(p)];
        for (int32_t t = 0; t < num_toks(); ++t) {
          if (banks[static_cast<size_t>(t)] == bank) {
            const std::vector<double> inner =
                shrunk(in.data() + int64_t{t} * k, weight, a_values, r);
            for (int32_t j = 0; j < n; ++j) {
              double sum = 0;
              for (int32_t i = 0; i < r; ++i) {
                sum += inner[static_cast<size_t>(i)] *
                       b_values[size_of(j, r) + static_cast<size_t>(i)];
              }
              sums[size_of(t, width()) + static_cast<size_t>(column + j)] += kScale * sum;
            }
          }
        }
        column += n;
      }
    }
    if (!gated) {
      return sums;
    }
    const auto n = static_cast<size_t>(widths.front());
    std::vector<double> out;
    for (size_t at = 0; at < sums.size(); at += 2 * n) {
      for (size_t j = 0; j < n; ++j) {
        out.push_back(silu(sums[at + j]) * sums[at + n + j]);
      }
    }
    return out;
  }

 private:
  static size_t size_of(int64_t rows, int64_t cols) { return static_cast<size_t>(rows * cols); }
  static int64_t aligned(size_t bytes) { return static_cast<int64_t>((bytes + 255) / 256 * 256); }
  static uint32_t seed(int32_t bank, int32_t part) {
    return 100 + 10 * static_cast<uint32_t>(bank) + 2 * static_cast<uint32_t>(part);
  }
  [[nodiscard]] std::vector<double> shrunk(const float* in,
                                           const std::vector<float>& weight,
                                           const std::vector<float>& a_values,
                                           int32_t r) const {
    double squares = 0;
    for (int32_t i = 0; i < k; ++i) {
      squares += static_cast<double>(in[i]) * in[i];
    }
    const double scale = normed ? 1.0 / std::sqrt(squares / k + kEps) : 1.0;
    std::vector<double> inner(static_cast<size_t>(r));
    for (int32_t row = 0; row < r; ++row) {
      double sum = 0;
      for (int32_t i = 0; i < k; ++i) {
        const double w = normed ? weight[static_cast<size_t>(i)] : 1.0;
        sum += a_values[size_of(row, k) + static_cast<size_t>(i)] * (in[i] * w);
      }
      inner[static_cast<size_t>(row)] = sum * scale;
    }
    return inner;
  }
};

// Cases of several sizes with many kinds of rows. Widths and inputs are multiples of 8. Of float32 they are small, as
// nothing but the time depends on it.
inline std::vector<LowRankCase> low_rank_cases(DType dtype) {
  const std::vector<LowRankRow> mixed{
      {1, 0}, {1, -1}, {19, 2}, {1, 1}, {7, -1}, {1, 2}, {30, 0}, {2, 1}};
  const bool small = dtype == DType::kF32;
  std::vector<LowRankCase> cases;
  cases.push_back({.dtype = dtype, .rows = {{1, 0}}});
  cases.push_back(
      {.dtype = dtype, .k = 576, .widths = {576, 192, 192}, .ranks = {16, 8, 32}, .rows = mixed});
  cases.push_back({.dtype = dtype,
                   .k = small ? 200 : 1536,
                   .widths = {40, 24},
                   .ranks = {5, 0, 17},
                   .rows = mixed,
                   .num_padding_toks = 5,
                   .normed = true});
  // The last sum of squares is of eight inputs.
  cases.push_back({.dtype = dtype, .k = 200, .rows = mixed, .normed = true});
  cases.push_back({.dtype = dtype,
                   .k = small ? 512 : 4096,
                   .widths = {328, 328},
                   .ranks = {16, 0, 3},
                   .rows = mixed,
                   .num_padding_toks = 3,
                   .normed = true,
                   .gated = true});
  cases.push_back({.dtype = dtype,
                   .k = small ? 1048 : 14336,
                   .widths = {small ? 520 : 4096},
                   .ranks = {16, 64},
                   .num_banks = 8,
                   .max_rank = 64,
                   .rows = {{1, 0}, {1, 7}, {1, 3}, {1, -1}, {1, 3}, {1, 4}, {3, 5}, {1, 6}}});
  cases.push_back(
      {.dtype = dtype, .k = 40, .widths = {8}, .ranks = {1}, .rows = {{600, 1}, {3, -1}, {70, 2}}});
  return cases;
}

}  // namespace warprow::testing
