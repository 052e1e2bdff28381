// SPDX-License-Identifier: Apache-2.0
#include "runner/rows.h"

#include "base/check.h"
#include "kernels/sample/sample.h"

#include <algorithm>

namespace warprow {
namespace {

// The sampling rules that one row needs.
uint32_t sample_rules_of(const SamplingParams& params) {
  uint32_t rules = 0;
  if (!params.is_greedy()) {
    rules |= kSampleRandom;
    if (params.top_k > 0 || params.top_p < 1.0F || params.min_p > 0.0F) {
      rules |= kSampleCut;
    }
  }
  if (params.num_logprobs >= 0) {
    rules |= kSampleLogprobs;
  }
  if (params.min_tokens > 0 || params.repetition_penalty != 1.0F ||
      params.frequency_penalty != 0.0F || params.presence_penalty != 0.0F) {
    rules |= kSamplePenalties;
  }
  if (params.has_token_lists()) {
    rules |= kSampleTokenLists;
  }
  return rules;
}

}  // namespace

RequestRows::RequestRows(Arena& state,
                         Device& device,
                         const StepLimits& limits,
                         StagedTables& staged)
    : states_(state.alloc<RowState>(limits.max_num_seqs)),
      params_(state.alloc<SamplingParams>(limits.max_num_seqs)),
      stop_ids_(state.alloc<int32_t>(int64_t{limits.max_num_seqs} * kStopIdsWidth)),
      token_lists_(state.alloc<int32_t>(int64_t{limits.max_num_seqs} * kTokenListsWidth)),
      store_(state, device, limits, staged),
      hosts_(static_cast<size_t>(limits.max_num_seqs)) {
  // All rows may be new in one step.
  const auto add_table = [&](auto* cells, int64_t width) {
    return staged.add(
        reinterpret_cast<int32_t*>(cells), width, limits.max_num_seqs, limits.max_num_seqs * width);
  };
  state_table_ = add_table(states_, sizeof(RowState) / sizeof(int32_t));
  params_table_ = add_table(params_, sizeof(SamplingParams) / sizeof(int32_t));
  stop_ids_table_ = add_table(stop_ids_, kStopIdsWidth);
  token_lists_table_ = add_table(token_lists_, kTokenListsWidth);
  if (limits.max_drafts > 0) {
    drafts_ = {state.alloc<int32_t>(int64_t{limits.max_num_seqs} * limits.max_drafts),
               limits.max_drafts};
    drafts_table_ = add_table(drafts_.tokens, limits.max_drafts);
  }
}

void RequestRows::append(const PageAppend& append,
                         const SchedulerOutput& out,
                         StagedWrites& staged) {
  store_.append(append, slice(out.page_ids, append.pages), staged);
}

void RequestRows::add(const NewRow& row, const SchedulerOutput& out, StagedWrites& staged) {
  Host& host = hosts_[static_cast<size_t>(index_of(row.row))];
  WR_CHECK(!host.live, "row {} is given out twice", index_of(row.row));
  WR_CHECK_EQ(row.tokens.count, row.prefill_len);
  const std::span tokens = slice(out.token_ids, row.tokens);
  host.live = true;
  host.generation = row.generation;
  host.prefill_len = row.prefill_len;
  store_.put_prefill(row.row, tokens);
  host.num_logprobs = row.params.num_logprobs;
  host.sample_rules = sample_rules_of(row.params);

  RowState state;
  state.prompt_len = row.prompt_len;
  state.prefill_len = row.prefill_len;
  state.total_len = row.prefill_len;
  state.num_computed_tokens = row.num_computed_tokens;
  state.generation = row.generation;
  staged.stage_struct(state_table_, row.row, state);
  staged.stage_struct(params_table_, row.row, row.params);
  if (row.params.min_tokens > 0) {
    const Span32 ids = row.stop_ids;
    WR_CHECK_LE(ids.count, kMaxStopIds);
    const std::span<int32_t> cells = staged.stage(stop_ids_table_, row.row, 0, 1 + ids.count);
    cells[0] = ids.count;
    std::copy_n(out.stop_ids.begin() + ids.begin, ids.count, cells.begin() + 1);
  }
  if (row.params.has_lists()) {
    const Span32 words = row.token_lists;
    WR_CHECK_GE(words.count, kTokenListsHeader);
    WR_CHECK_LE(words.count, kTokenListsWidth);
    const std::span<int32_t> cells = staged.stage(token_lists_table_, row.row, 0, words.count);
    std::copy_n(out.token_lists.begin() + words.begin, words.count, cells.begin());
  }
}

void RequestRows::release(RowId row) {
  Host& host = hosts_[static_cast<size_t>(index_of(row))];
  WR_CHECK(host.live, "row {} is released but not live", index_of(row));
  host.live = false;
}

void RequestRows::set_drafts(RowId row,
                             std::span<const TokenId> drafts,
                             StagedWrites& staged) const {
  WR_CHECK_LE(drafts.size(), drafts_.max_drafts);
  const auto count = static_cast<int32_t>(drafts.size());
  std::copy(drafts.begin(), drafts.end(), staged.stage(drafts_table_, row, 0, count).begin());
}

}  // namespace warprow
