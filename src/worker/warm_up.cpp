// SPDX-License-Identifier: Apache-2.0
#include "worker/warm_up.h"

#include "base/check.h"
#include "base/math.h"

#include <algorithm>
#include <span>
#include <vector>

namespace warprow {
namespace {

constexpr int32_t kChunkLen = 3;  // more than one token; more than a few would cost a CPU time
constexpr int32_t kMaxRows = 2;

SamplingParams every_rule() {
  SamplingParams params;
  params.temperature = 1.0F;
  params.top_k = 4;
  params.top_p = 0.9F;
  params.min_p = 0.01F;
  params.num_logprobs = 1;
  params.repetition_penalty = 1.1F;
  return params;
}

// Runs steps one after the other and waits for each: some configurations do not allow two in flight.
void run(Runner& runner, SchedulerOutput& step) {
  step.results_through = step.step - 1;
  runner.execute_model(step);
  runner.sample_tokens(nullptr);
  ModelRunnerOutput output;
  runner.take_output(output);
  WR_CHECK_EQ(output.step, step.step);
  WR_CHECK_EQ(output.rows.size(), step.scheduled.size());
}

// Blocks of the group for a row of this many tokens.
int32_t blocks_for(const KvGroupSpec& group, int32_t tokens) {
  return ceil_div(tokens, group.block_size);
}

// A row with this prompt and `first_block` and the following blocks; its whole prompt runs.
void add_row(SchedulerOutput& step,
             int32_t row,
             std::span<const TokenId> prompt,
             int32_t first_block,
             const SamplingParams& params,
             const WarmUpLimits& limits,
             const KvCacheSpec& cache) {
  const auto prompt_len = static_cast<int32_t>(prompt.size());
  NewRow added;
  added.row = RowId{row};
  added.prompt_len = prompt_len;
  added.prefill_len = prompt_len;
  added.tokens = {static_cast<int32_t>(step.token_ids.size()), prompt_len};
  added.params = params;
  step.token_ids.insert(step.token_ids.end(), prompt.begin(), prompt.end());
  const auto num_groups = static_cast<int32_t>(cache.groups.size());
  for (int32_t group = 0; group < num_groups; ++group) {
    const auto at = static_cast<int32_t>(step.block_ids.size());
    const int32_t cells = cache.groups[static_cast<size_t>(group)].num_state_cells();
    if (cells > 0) {  // null blocks: no state is kept
      step.block_ids.resize(step.block_ids.size() + static_cast<size_t>(cells), kNullBlock);
      step.block_appends.push_back({added.row, group, 0, {at, cells}});
      continue;
    }
    const int32_t blocks = blocks_for(cache.groups[static_cast<size_t>(group)], prompt_len);
    for (int32_t i = 0; i < blocks; ++i) {
      step.block_ids.push_back(BlockId{first_block++});
    }
    step.block_appends.push_back({added.row, group, 0, {at, blocks}});
  }
  // Room for the prompt and for a token of each of the row's steps.
  const int32_t num_pages = limits.token_pages.pages_for(prompt_len + 1);
  step.page_appends.push_back(
      {added.row, 0, {static_cast<int32_t>(step.page_ids.size()), num_pages}});
  for (int32_t i = 0; i < num_pages; ++i) {
    step.page_ids.push_back(PageId{1 + static_cast<int32_t>(step.page_ids.size())});
  }
  step.new_rows.push_back(added);
  step.scheduled.push_back({added.row, prompt_len, 0, 0, 1});
  step.total_num_tokens += prompt_len;
}

// Tokens 0, 1, ...
std::vector<TokenId> first_tokens(int32_t num, const WarmUpLimits& limits) {
  std::vector<TokenId> tokens;
  tokens.reserve(static_cast<size_t>(num));
  for (int32_t i = 0; i < num; ++i) {
    tokens.push_back(i % limits.vocab_size);
  }
  return tokens;
}

}  // namespace

void run_calibration(Runner& runner,
                     Model& model,
                     const WarmUpLimits& limits,
                     const KvCacheSpec& cache) {
  const auto blocks_of_all = [&cache](int32_t tokens) {
    int32_t blocks = 0;
    for (const KvGroupSpec& group : cache.groups) {
      blocks += group.num_state_cells() > 0 ? 0 : blocks_for(group, tokens);
    }
    return blocks;
  };
  int32_t num =
      std::min({kCalibrationToks, limits.max_num_batched_tokens, limits.max_model_len - 1});
  while (num > 0 && blocks_of_all(num) >= cache.num_blocks) {
    --num;
  }
  WR_CHECK_GT(num, 0);
  std::vector<TokenId> prompt;
  prompt.reserve(static_cast<size_t>(num));
  for (int64_t i = 0; i < num; ++i) {
    prompt.push_back(static_cast<TokenId>(i * limits.vocab_size / num));
  }
  SchedulerOutput step;
  step.step = -4;
  add_row(step, 0, prompt, 1, {}, limits, cache);
  model.measure_kv_scales(true);
  run(runner, step);
  model.measure_kv_scales(false);  // a step without tokens has a forward, too
  step.clear();
  step.step = -3;
  step.finished_rows.push_back(RowId{0});
  run(runner, step);
}

void warm_up(Runner& runner, const WarmUpLimits& limits, const KvCacheSpec& cache) {
  const auto num_groups = static_cast<int32_t>(cache.groups.size());
  const int32_t num_rows = std::min({kMaxRows,
                                     limits.max_num_seqs,
                                     limits.max_num_batched_tokens,
                                     (cache.num_blocks - 1) / std::max(num_groups, 1)});
  // A row has room for its prompt and for a token of each of its steps.
  const int32_t chunk_len =
      std::min({kChunkLen, limits.max_num_batched_tokens - num_rows + 1, limits.max_model_len - 2});
  SchedulerOutput step;
  if (num_rows < 1 || chunk_len < 1) {
    run(runner, step);
    return;
  }
  step.step = -2;
  add_row(step, 0, first_tokens(chunk_len, limits), 1, every_rule(), limits, cache);
  if (num_rows > 1) {
    add_row(step, 1, first_tokens(1, limits), 1 + num_groups, {}, limits, cache);
  }
  run(runner, step);

  const NewRow last = step.new_rows.back();
  const int32_t first_kept = limits.loads_kernels ? num_rows - 1 : num_rows;
  step.clear();
  step.step = -1;
  for (int32_t row = 0; row < first_kept; ++row) {
    step.finished_rows.push_back(RowId{row});
  }
  if (limits.loads_kernels) {
    step.scheduled.push_back({last.row, 1, last.prefill_len, 0, 1});
    step.total_num_tokens = 1;
    run(runner, step);
    step.clear();
    step.step = 0;
    step.finished_rows.push_back(last.row);
  }
  run(runner, step);
}

}  // namespace warprow
