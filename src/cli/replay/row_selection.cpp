// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/row_selection.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace warprow {
namespace {

template <typename T>
Span32 append_slice(const std::vector<T>& from, Span32 which, std::vector<T>& to) {
  const auto begin = static_cast<int32_t>(to.size());
  const auto ids = slice(from, which);
  to.insert(to.end(), ids.begin(), ids.end());
  return {begin, which.count};
}

// A copy of a new row in another step, whose pools get what the row names. All vectors of embeddings come along.
void copy_row(const NewRow& row, const SchedulerOutput& from, SchedulerOutput& to) {
  NewRow& copy = to.new_rows.emplace_back(row);
  copy.tokens = append_slice(from.token_ids, row.tokens, to.token_ids);
  copy.stop_ids = append_slice(from.stop_ids, row.stop_ids, to.stop_ids);
  copy.token_lists = append_slice(from.token_lists, row.token_lists, to.token_lists);
  if (row.embeds.count > 0) {
    to.embeddings = from.embeddings;
  }
}

// The blocks of a row that begins, by index in its table of the group.
std::vector<BlockId> first_blocks(RowId row, int32_t group, const SchedulerOutput& step) {
  std::vector<BlockId> blocks;
  for (const BlockAppend& append : step.block_appends) {
    if (append.row == row && append.group == group) {
      append_slice(step.block_ids, append.blocks, blocks);
    }
  }
  return blocks;
}

}  // namespace

RowSelection::RowSelection(const ModelFacts& facts)
    : facts_(facts),
      rows_(static_cast<size_t>(facts.max_num_seqs)),
      is_known_(static_cast<size_t>(facts.kv.num_blocks)) {}

void RowSelection::restart() {
  for (size_t i = 0; i < rows_.size(); ++i) {
    release(RowId{static_cast<int32_t>(i)});
  }
  std::ranges::fill(is_known_, 0);
}

void RowSelection::release(RowId row) {
  if (rows_[index(row)].runs) {
    released_.push_back(row);
  }
  rows_[index(row)] = {};
}

void RowSelection::distrust(RowId row, uint32_t generation) {
  Row& its = rows_[index(row)];
  if (its.generation != generation) {
    return;  // released meanwhile
  }
  its.is_trusted = false;
  for (const BlockId block : its.written) {
    is_known_[static_cast<size_t>(index_of(block))] = 0;
  }
}

const std::vector<SchedulerOutput>& RowSelection::select(const SchedulerOutput& step) {
  steps_.clear();
  for (const auto* rows : {&step.finished_rows, &step.preempted_rows}) {
    for (const RowId row : *rows) {
      release(row);
    }
  }
  // A new row may share blocks that rows before it in the step are to write.
  for (const BlockAppend& append : step.block_appends) {
    if (std::ranges::find(step.new_rows, append.row, &NewRow::row) == step.new_rows.end()) {
      note_blocks(append, 0, step);
    }
  }
  for (const NewRow& row : step.new_rows) {
    begin(row, step);
    for (const BlockAppend& append : step.block_appends) {
      if (append.row == row.row) {
        note_blocks(append, row.num_computed_tokens, step);
      }
    }
  }
  copy_selected(step);
  return steps_;
}

// A step with the number of the recorded one, which begins with the releases that are due. It needs the results of all
// steps before it, some of which may have its number.
SchedulerOutput& RowSelection::add_step(const SchedulerOutput& step) {
  SchedulerOutput& added = steps_.emplace_back();
  added.step = added.results_through = step.step;
  added.finished_rows = std::exchange(released_, {});
  return added;
}

void RowSelection::begin(const NewRow& added, const SchedulerOutput& step) {
  const int32_t num_known = num_known_tokens(added, step);
  Row& row = rows_[index(added.row)];
  row.runs = num_known >= 0;
  row.was_left_out = !row.runs;
  row.generation = added.generation;
  ++(row.runs ? num_begun_ : num_left_out_);
  if (row.runs && num_known < added.num_computed_tokens) {
    recompute(added, num_known, step);
  }
}

// How many tokens of the row's cached prefix lie in blocks of known content; a multiple of all block sizes, or the
// whole prefix. -1: the rest cannot be computed again.
int32_t RowSelection::num_known_tokens(const NewRow& added, const SchedulerOutput& step) const {
  int32_t num_known = added.num_computed_tokens;
  int32_t unit = 1;
  bool has_skipped = false;
  for (size_t group = 0; group < facts_.kv.groups.size(); ++group) {
    const int32_t block_size = facts_.kv.groups[group].block_size;
    unit = std::lcm(unit, block_size);
    const auto blocks = first_blocks(added.row, static_cast<int32_t>(group), step);
    if (const auto pages = static_cast<size_t>(facts_.kv.groups[group].state_pages); pages > 0) {
      has_skipped = true;  // the states before the one that the row starts from
      for (size_t i = 2 * pages; i < 3 * pages && added.num_computed_tokens > 0; ++i) {
        num_known = is_known_[static_cast<size_t>(index_of(blocks.at(i)))] == 0 ? 0 : num_known;
      }
      continue;
    }
    for (int32_t i = 0; i < added.num_computed_tokens / block_size; ++i) {
      const BlockId block = blocks.at(static_cast<size_t>(i));
      has_skipped = has_skipped || block == kNullBlock;
      if (block != kNullBlock && is_known_[static_cast<size_t>(index_of(block))] == 0) {
        num_known = std::min(num_known, i * block_size);
      }
    }
  }
  if (num_known == added.num_computed_tokens) {
    return num_known;
  }
  return has_skipped ? -1 : num_known / unit * unit;
}

// Computes the prefix in the row itself, which is released again before the recorded step gives it out.
void RowSelection::recompute(const NewRow& added, int32_t num_known, const SchedulerOutput& step) {
  int32_t num_computed = num_known;
  num_recomputed_ += added.num_computed_tokens - num_known;
  while (num_computed < added.num_computed_tokens) {
    SchedulerOutput& extra = add_step(step);
    if (num_computed == num_known) {
      copy_row(added, step, extra);
      NewRow& row = extra.new_rows.back();
      row.num_computed_tokens = num_known;
      row.params = {};
      for (size_t group = 0; group < facts_.kv.groups.size(); ++group) {
        auto blocks = first_blocks(added.row, static_cast<int32_t>(group), step);
        blocks.resize(
            static_cast<size_t>(added.num_computed_tokens / facts_.kv.groups[group].block_size));
        for (const BlockId block : blocks) {
          is_known_[static_cast<size_t>(index_of(block))] = 1;
        }
        const Span32 all{0, static_cast<int32_t>(blocks.size())};
        extra.block_appends.push_back({added.row,
                                       static_cast<int32_t>(group),
                                       0,
                                       append_slice(blocks, all, extra.block_ids)});
      }
      for (const PageAppend& append : step.page_appends) {
        if (append.row == added.row) {
          extra.page_appends.push_back({append.row,
                                        append.start,
                                        append_slice(step.page_ids, append.pages, extra.page_ids)});
        }
      }
    }
    const int32_t chunk =
        std::min(added.num_computed_tokens - num_computed, facts_.max_num_batched_tokens);
    extra.scheduled.push_back({added.row, chunk, num_computed});
    extra.total_num_tokens = chunk;
    num_computed += chunk;
  }
  released_.push_back(added.row);
}

// The blocks that a row is to write: known if the row runs.
void RowSelection::note_blocks(const BlockAppend& append,
                               int32_t num_hit,
                               const SchedulerOutput& step) {
  Row& row = rows_[index(append.row)];
  const KvGroupSpec& group = facts_.kv.groups[static_cast<size_t>(append.group)];
  int32_t at = append.start;
  for (const BlockId block : slice(step.block_ids, append.blocks)) {
    const bool is_read = group.kind == KvKind::kState ? at >= 2 * group.state_pages
                                                      : at < num_hit / group.block_size;
    ++at;
    if (is_read || block == kNullBlock) {
      continue;
    }
    is_known_[static_cast<size_t>(index_of(block))] = row.runs && row.is_trusted ? 1 : 0;
    row.written.push_back(block);
  }
}

// The recorded step without the rows that do not run.
void RowSelection::copy_selected(const SchedulerOutput& step) {
  SchedulerOutput& out = add_step(step);
  for (const NewRow& row : step.new_rows) {
    if (runs(row.row)) {
      copy_row(row, step, out);
    }
  }
  for (const BlockAppend& append : step.block_appends) {
    if (runs(append.row)) {
      out.block_appends.push_back(append);
      out.block_appends.back().blocks = append_slice(step.block_ids, append.blocks, out.block_ids);
    }
  }
  for (const PageAppend& append : step.page_appends) {
    if (runs(append.row)) {
      out.page_appends.push_back(append);
      out.page_appends.back().pages = append_slice(step.page_ids, append.pages, out.page_ids);
    }
  }
  int32_t draft = 0;
  for (const ScheduledRow& row : step.scheduled) {
    const Span32 drafts{draft, step.draft_token_ids.empty() ? 0 : row.num_drafts};
    draft += drafts.count;
    if (runs(row.row)) {
      out.scheduled.push_back(row);
      out.total_num_tokens += row.num_tokens;
      append_slice(step.draft_token_ids, drafts, out.draft_token_ids);
      continue;
    }
    Row& left_out = rows_[index(row.row)];
    num_left_out_ += std::exchange(left_out.was_left_out, true) ? 0 : 1;
  }
  std::ranges::copy_if(step.grammar_rows, std::back_inserter(out.grammar_rows), [this](RowId row) {
    return runs(row);
  });
}

const GrammarOutput& RowSelection::select(const GrammarOutput& grammar) {
  grammar_.clear();
  size_t num_masks = 0;
  for (const MaskedRow& row : grammar.masked_rows) {
    num_masks += static_cast<size_t>(row.num_masks);
  }
  const size_t mask_words = grammar.bitmask.size() / std::max<size_t>(num_masks, 1);
  auto at = grammar.bitmask.begin();
  for (const MaskedRow& row : grammar.masked_rows) {
    const auto end =
        at + static_cast<std::ptrdiff_t>(mask_words * static_cast<size_t>(row.num_masks));
    if (runs(row.row)) {
      grammar_.masked_rows.push_back(row);
      grammar_.bitmask.insert(grammar_.bitmask.end(), at, end);
    }
    at = end;
  }
  std::ranges::copy_if(grammar.withheld_rows,
                       std::back_inserter(grammar_.withheld_rows),
                       [this](RowId row) { return runs(row); });
  return grammar_;
}

}  // namespace warprow
