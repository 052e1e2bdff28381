// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/sample.h"
#include "kernels/sample/token_history.h"
#include "tests/kernels/cpu_harness.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::testing {

// Token history of rows in the runner's layout: the prefill in one array, later tokens in another, both in pages in any
// order.
struct TokenRows {
  static constexpr int32_t kPageShift = 4;
  static constexpr int32_t kPagesPerRow = 4;
  static constexpr int32_t kMaxLen = kPagesPerRow << kPageShift;
  std::vector<int32_t> pages, prefill, later, prompt_len, prefill_len, len;

  explicit TokenRows(int64_t n)
      : pages(static_cast<size_t>(n * kPagesPerRow)),
        prefill(pages.size() << kPageShift, -7),
        later(prefill) {
    std::iota(pages.rbegin(), pages.rend(), 0);
  }
  void add(const std::vector<int32_t>& tokens, int32_t prompt, int32_t num_prefill) {
    const auto row = static_cast<int64_t>(len.size());
    for (int32_t at = 0; at < static_cast<int32_t>(tokens.size()); ++at) {
      auto& place = at < num_prefill ? prefill : later;
      place[static_cast<size_t>(view().tokens.cell(row, at))] = tokens[static_cast<size_t>(at)];
    }
    prompt_len.push_back(prompt);
    prefill_len.push_back(num_prefill);
    len.push_back(static_cast<int32_t>(tokens.size()));
  }
  [[nodiscard]] TokenHistory view() const {
    auto* outputs = const_cast<int32_t*>(later.data());  // the sampler only reads it
    return {{pages.data(), prefill.data(), outputs, kPagesPerRow, kPageShift},
            prompt_len.data(),
            prefill_len.data(),
            1};
  }
  [[nodiscard]] KnownTokens tokens(size_t row) const {
    return known_tokens(view(), static_cast<int32_t>(row), len[row] - 1);
  }
};

struct Drawn {
  std::vector<int32_t> tokens, errors, ranks;
  std::vector<float> logprobs;
};

// One call of the sampler. Row i of the logits belongs to request i, which has len[i] tokens.
inline Drawn draw(const TokenHistory& tokens,
                  const std::vector<SampleParams>& params,
                  const std::vector<int32_t>& len,
                  const std::vector<float>& logits,
                  int32_t threads = 1,
                  const View<const int32_t, 2>& stop_ids = {},
                  const View<const int32_t, 2>& token_lists = {}) {
  CpuHarness cpu(threads);
  const auto n = static_cast<int64_t>(params.size());
  const int64_t vocab = static_cast<int64_t>(logits.size()) / n;
  std::vector<int32_t> row(params.size());
  std::vector<int32_t> position(params.size());
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<int32_t>(i);
    position[i] = len[i] - 1;
  }
  Drawn out;
  out.tokens.resize(params.size());
  out.errors = out.ranks = out.tokens;
  out.logprobs.resize(params.size());
  std::vector<int32_t> top_ids(params.size());
  std::vector<float> top_logprobs(params.size());
  // Scratch contents from earlier calls must not matter.
  std::vector<std::byte> scratch(cpu::sample_scratch_bytes(vocab, threads), std::byte{0xa5});
  const auto before = logits;
  SampleArgs a;
  a.logits = make_view(logits.data(), n, vocab);
  a.logit_row = make_view<const int32_t>(row.data(), n);
  a.logit_pos = make_view<const int32_t>(position.data(), n);
  a.params = make_view(params.data(), n);
  a.tokens = tokens;
  a.stop_ids = stop_ids.data;
  a.stop_ids_stride = stop_ids.stride[0];
  a.token_lists = token_lists.data;
  a.token_lists_stride = token_lists.stride[0];
  a.sampled = make_view(out.tokens.data(), n);
  a.logprob = make_view(out.logprobs.data(), n);
  a.rank = make_view(out.ranks.data(), n);
  a.top_ids = make_view(top_ids.data(), n, 1);
  a.top_logprobs = make_view(top_logprobs.data(), n, 1);
  a.error = make_view(out.errors.data(), n);
  a.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
  sample(*cpu.stream, a);
  EXPECT_EQ(logits, before) << "the sampler must not change raw logits";
  return out;
}

}  // namespace warprow::testing
