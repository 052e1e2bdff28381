// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/low_rank/low_rank.h"

namespace warprow::cuda {
namespace {

constexpr int kGroupThreads = 512;

__global__ void __launch_bounds__(kGroupThreads) group_tokens(GroupByBankArgs a,
                                                              int32_t most_runs) {
  __shared__ int32_t counts[kMaxBanks + 1];
  __shared__ int32_t next[kMaxBanks + 1];
  __shared__ int32_t firsts[kMaxBanks + 1];
  __shared__ int32_t first_runs[kMaxBanks + 2];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread <= kMaxBanks) {
    counts[thread] = 0;
  }
  // No early release: kernels behind this one read what it writes before they wait.
  pdl_wait();
  for (int t = thread; t < a.num_toks; t += kGroupThreads) {
    a.runs.token_banks[t] = -1;
  }
  __syncthreads();
  const int lane = thread % 32;
  for (int b = thread / 32; b < a.num_rows; b += kGroupThreads / 32) {
    const int row = a.idx_mapping[b];
    if (row < 0) {
      continue;
    }
    const int bank = a.row_banks[row];
    for (int t = a.query_start_loc[b] + lane; t < a.query_start_loc[b + 1]; t += 32) {
      a.runs.token_banks[t] = bank;
    }
  }
  __syncthreads();
  const auto place_of = [&](int t) {
    const int bank = a.runs.token_banks[t];
    return bank < 0 ? a.num_banks : bank;
  };
  for (int t = thread; t < a.num_toks; t += kGroupThreads) {
    atomicAdd(&counts[place_of(t)], 1);
  }
  __syncthreads();
  if (thread == 0) {
    int first = 0;
    int run = 0;
    for (int bank = 0; bank <= a.num_banks; ++bank) {
      firsts[bank] = next[bank] = first;
      first_runs[bank] = run;
      first += counts[bank];
      run += (counts[bank] + kRunToks - 1) / kRunToks;
    }
    first_runs[a.num_banks + 1] = run;
  }
  __syncthreads();
  for (int t = thread; t < a.num_toks; t += kGroupThreads) {
    a.runs.order[atomicAdd(&next[place_of(t)], 1)] = t;
  }
  for (int run = thread; run < most_runs; run += kGroupThreads) {
    int bank = 0;
    while (bank <= a.num_banks && run >= first_runs[bank + 1]) {
      ++bank;
    }
    BankRun out{-1, 0, 0};
    if (bank <= a.num_banks) {
      const int done = (run - first_runs[bank]) * kRunToks;
      out = {
          bank == a.num_banks ? -1 : bank, firsts[bank] + done, min(kRunToks, counts[bank] - done)};
    }
    a.runs.runs[run] = out;
  }
  __threadfence();
}

}  // namespace

void group_by_bank(Stream& stream, const GroupByBankArgs& args) {
  WR_CHECK(args.num_banks >= 1 && args.num_banks <= kMaxBanks, "{} banks", args.num_banks);
  launch(stream,
         "group_by_bank",
         {1, kGroupThreads},
         group_tokens,
         args,
         max_bank_runs(args.num_toks, args.num_banks));
}

}  // namespace warprow::cuda
