// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "wire/sampling_params.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// A slice [begin, begin + count) of one of the flat pools below.
struct Span32 {
  int32_t begin = 0;
  int32_t count = 0;
  bool operator==(const Span32&) const = default;
};

template <typename T>
[[nodiscard]] std::span<const T> slice(const std::vector<T>& pool, Span32 which) {
  return std::span(pool).subspan(static_cast<size_t>(which.begin),
                                 static_cast<size_t>(which.count));
}

// The most ids in NewRow::stop_ids.
inline constexpr int32_t kMaxStopIds = 128;

// A request that enters a row in this step. Also a resumed request, whose prefill is prompt + outputs so far.
struct NewRow {
  RowId row = kNoRow;
  uint32_t generation = 0;  // raised each time the row is given out; results carry it
  int32_t prompt_len = 0;   // as the user sent it; rules that separate prompt and output use it
  int32_t prefill_len = 0;  // tokens known at admission: prompt, or prompt + outputs when resumed
  int32_t num_computed_tokens = 0;  // prefix cache hits
  // In SchedulerOutput::token_ids: the prefill. -1 at each place of the prompt that has a vector in place of an id.
  Span32 tokens;
  int32_t adapter = -1;
  SamplingParams params;
  Span32 stop_ids;  // in SchedulerOutput::stop_ids; EOS and stop ids, only with params.min_tokens
  // In SchedulerOutput::token_lists, packed as in wire/token_lists.h; only with has_lists().
  Span32 token_lists;
  // Vectors of SchedulerOutput::embeddings, as the embedding layer would give them: one for each -1 of `tokens`.
  Span32 embeds;
  bool operator==(const NewRow&) const = default;
};

// Blocks appended to a row's table of one group. A new row's first blocks come this way too, with
// start 0.
struct BlockAppend {
  RowId row = kNoRow;
  int32_t group = 0;
  int32_t start = 0;  // index in the row's table of the first new block, in manager blocks
  Span32 blocks;      // in SchedulerOutput::block_ids
  bool operator==(const BlockAppend&) const = default;
};

// Pages of the token pool (kv/token_pages.h) appended to those of a row. A new row's first pages, which
// hold its whole prefill, come this way too, with start 0.
struct PageAppend {
  RowId row = kNoRow;
  int32_t start = 0;  // how many pages the row has had so far
  Span32 pages;       // in SchedulerOutput::page_ids
  bool operator==(const PageAppend&) const = default;
};

// A row that advances in this step.
struct ScheduledRow {
  RowId row = kNoRow;
  int32_t num_tokens = 0;  // >= 1
  // Before this step; exact without drafts in flight, else an upper bound.
  int32_t num_computed_tokens = 0;
  int32_t num_drafts = 0;  // the last ones of num_tokens: drafts to verify
  // Rows of logits that the row yields, at its last tokens: 1 + num_drafts if it samples, 0 if it only fills the
  // cache (a prefill chunk that does not reach the end).
  int32_t num_logits = 0;
  bool wants_drafts = false;  // the host needs RowOutput::drafts
  bool operator==(const ScheduledRow&) const = default;
};

// Vectors of one width.
struct EmbeddingVectors {
  int32_t width = 0;
  std::vector<float> values;  // [num_vectors, width]
  [[nodiscard]] size_t num_vectors() const {
    return width > 0 ? values.size() / static_cast<size_t>(width) : 0;
  }
  bool operator==(const EmbeddingVectors&) const = default;
};

// The content of a block, copied before the step's forward, in the order of the list.
struct BlockCopy {
  int32_t group = 0;
  BlockId from{};
  BlockId to{};
  bool operator==(const BlockCopy&) const = default;
};

struct EncoderInput {
  RowId row = kNoRow;
  int32_t item = 0;
  bool operator==(const EncoderInput&) const = default;
};

// What the data-parallel ranks agreed on, so that all run the same shapes. num_toks_padded 0: no agreement needed.
struct DataParallelShape {
  int32_t num_toks_padded = 0;
  int32_t graph_mode = 0;
  bool operator==(const DataParallelShape&) const = default;
};

// One step as the scheduler plans it: flat, serialisable, rows only, no request ids.
//
// Order of effects: finished and preempted rows are released first, then new rows take theirs (a row may be
// released and given out in the same step), then pages and blocks are appended, then `scheduled` runs. A step with
// no scheduled rows still releases rows and yields an empty output.
// Invariant: total_num_tokens is the sum over scheduled; every scheduled row is live after the
// releases and additions.
struct SchedulerOutput {
  int64_t step = 0;
  // The last step whose results must be known before this one runs: the last that sampled for one of its rows, or the
  // last whose output the scheduler has taken. Pipeline stages before the last need it: they receive the results of a step
  // after they have submitted later ones.
  int64_t results_through = 0;
  std::vector<RowId> finished_rows;
  std::vector<RowId> preempted_rows;
  std::vector<NewRow> new_rows;
  std::vector<BlockAppend> block_appends;
  std::vector<PageAppend> page_appends;
  std::vector<ScheduledRow> scheduled;  // in the order of admission; the runner orders the batch
  int32_t total_num_tokens = 0;

  std::vector<TokenId> token_ids;    // pool of NewRow::tokens
  std::vector<BlockId> block_ids;    // pool of BlockAppend::blocks
  std::vector<PageId> page_ids;      // pool of PageAppend::pages
  std::vector<TokenId> stop_ids;     // pool of NewRow::stop_ids
  std::vector<int32_t> token_lists;  // pool of NewRow::token_lists

  // Rows that sample under a grammar in this step, in the order of `scheduled`; sample_tokens gets masks for them.
  std::vector<RowId> grammar_rows;

  // The drafts of `scheduled`, in its order, num_drafts for each row; -1: the draft that the device proposed for
  // the row. Empty: all drafts are those of the device.
  std::vector<TokenId> draft_token_ids;

  // How many drafts the device proposes for each row's next step; -1: as many as a step may have.
  int32_t num_proposals = -1;

  // The limit on prompt tokens beside decoding rows; 0: no limit. It depends on measured times, so a recording needs it
  // to check steps or to plan them again. Workers do not read it.
  int32_t max_mixed_prefill = 0;

  EmbeddingVectors embeddings;  // pool of NewRow::embeds
  std::vector<BlockCopy> block_copies;

  // For later features; empty today.
  std::vector<EncoderInput> encoder_inputs;
  std::vector<uint64_t> encoder_frees;
  std::vector<BlockId> blocks_to_zero;
  std::vector<uint8_t> connector_metadata;
  int32_t num_common_prefix_blocks = 0;
  DataParallelShape data_parallel;

  // Empties every list and keeps the capacity.
  void clear();
  bool operator==(const SchedulerOutput&) const = default;
};

// A row with masks for its first logits of the step.
struct MaskedRow {
  RowId row = kNoRow;
  int32_t num_masks = 0;  // 1 .. ScheduledRow::num_logits
  bool operator==(const MaskedRow&) const = default;
};

// Grammar bitmasks for sample_tokens, by logit: those of the first masked row, then those of the next. Each has
// ceil(vocab / 32) words; bit t % 32 of word t / 32 is set if token t is allowed. Mask i is valid if the row's
// drafts before it are accepted. The row yields at most num_masks tokens: nothing is drawn from logits after the
// last mask, since the grammar rejects the draft before them or ends with it. A withheld row has no mask yet:
// nothing is drawn from any of its logits, it keeps its drafts, and it computes the tokens of its logits again in a
// later step. Rows of the step that are in neither list are drawn without a mask.
struct GrammarOutput {
  std::vector<MaskedRow> masked_rows;
  std::vector<RowId> withheld_rows;
  std::vector<uint32_t> bitmask;

  // Empties every list and keeps the capacity.
  void clear();
  bool operator==(const GrammarOutput&) const = default;
};

}  // namespace warprow
