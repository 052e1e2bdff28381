// SPDX-License-Identifier: Apache-2.0
#include "kernels/low_rank/low_rank.h"

#include "tests/kernels/cpu_harness.h"
#include "tests/support/low_rank_case.h"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::first_mismatch;
using testing::HostMemory;
using testing::low_rank_cases;
using testing::LowRankCase;

std::vector<float> values_of(const ActView& view) {
  return testing::as_floats(view.dtype,
                            static_cast<const std::byte*>(view.data),
                            static_cast<size_t>(view.shape[0] * view.shape[1]));
}

TEST(LowRank, AgreesWithDoubleOnEveryIsa) {
  CpuHarness cpu;
  for (const LowRankCase& c : low_rank_cases(DType::kF32)) {
    const std::vector<double> expected = c.reference();
    for (const CpuIsa isa : testing::runnable_isas()) {
      const ScopedCpuIsa scope(isa);
      HostMemory memory;
      const LowRankCase::Args args = c.args(memory);
      args.run(*cpu.stream);
      EXPECT_EQ(first_mismatch(values_of(args.result()), expected, {2e-5, 2e-5}), -1)
          << cpu_isa_name(isa) << ", " << c.k << " inputs";
    }
  }
}

TEST(LowRank, ARowHasTheSameBitsAlone) {
  for (const int32_t threads : {1, 3}) {
    CpuHarness cpu(threads);
    for (const LowRankCase& c : low_rank_cases(DType::kF32)) {
      HostMemory memory;
      const LowRankCase::Args all = c.args(memory);
      all.run(*cpu.stream);
      for (size_t row = 0; row < c.rows.size(); ++row) {
        LowRankCase one = c;
        one.rows = {c.rows[row]};
        one.num_padding_toks = 0;
        const auto at = static_cast<int32_t>(row);
        const LowRankCase::Args args =
            one.args(memory, c.slice(c.x(), at, c.k), c.slice(c.y(), at, c.width()));
        args.run(*cpu.stream);
        EXPECT_EQ(values_of(args.result()),
                  c.slice(values_of(all.result()), at, all.result().shape[1]))
            << "row " << row;
      }
    }
  }
}

TEST(LowRank, TokensWithoutABankStayAsTheyAre) {
  CpuHarness cpu;
  LowRankCase c{.rows = {{2, -1}, {1, 1}, {1, -1}}, .num_padding_toks = 2};
  HostMemory memory;
  const LowRankCase::Args args = c.args(memory);
  args.run(*cpu.stream);
  const std::vector<float> before = c.y();
  const std::vector<float> after = values_of(args.result());
  for (const size_t tok : {0, 1, 3, 4, 5}) {
    EXPECT_EQ(std::memcmp(&before[tok * 64], &after[tok * 64], 64 * sizeof(float)), 0) << tok;
  }
  EXPECT_NE(before[2 * 64], after[2 * 64]);
}

TEST(LowRank, RunsHoldEveryTokenOnce) {
  CpuHarness cpu;
  LowRankCase c{.rows = {{9, 2}, {1, -1}, {8, 0}, {17, 2}, {1, 1}}, .num_padding_toks = 3};
  HostMemory memory;
  const LowRankCase::Args args = c.args(memory);
  group_by_bank(*cpu.stream, args.group);
  const std::vector<int32_t> banks = c.token_banks();
  std::vector<int32_t> seen(banks.size());
  for (int32_t i = 0; i < max_bank_runs(c.num_toks(), c.num_banks); ++i) {
    const BankRun& run = args.group.runs.runs[i];
    EXPECT_LE(run.count, kRunToks);
    for (int32_t j = 0; j < run.count; ++j) {
      const auto tok = static_cast<size_t>(args.group.runs.order[run.first + j]);
      EXPECT_EQ(banks[tok], run.bank);
      ++seen[tok];
    }
  }
  EXPECT_EQ(seen, std::vector<int32_t>(banks.size(), 1));
}

}  // namespace
}  // namespace warprow
