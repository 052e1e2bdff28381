// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/schedule_check.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

bool is_among(RowId row, const std::vector<RowId>& rows) {
  return std::ranges::find(rows, row) != rows.end();
}

// The first contradiction among those of a list, each found by `check`.
template <typename List, typename Check>
std::string first_of(const List& list, const Check& check) {
  for (const auto& one : list) {
    if (std::string wrong = check(one); !wrong.empty()) {
      return wrong;
    }
  }
  return {};
}

std::string of_row(RowId row, std::string_view what) {
  return fmt::format("row {} {}", index_of(row), what);
}

}  // namespace

ScheduleCheck::ScheduleCheck(const ModelFacts& facts) : facts_(facts) { restart(); }

void ScheduleCheck::restart() {
  rows_.assign(static_cast<size_t>(std::max(facts_.max_num_seqs, 0)), {});
  holders_.assign(static_cast<size_t>(std::max(facts_.kv.num_blocks, 0)), 0);
  page_held_.assign(static_cast<size_t>(std::max(facts_.token_pages.num_pages, 0)), 0);
  steps_.clear();
  last_step_ = -1;
}

ScheduleCheck::Row* ScheduleCheck::find(RowId row) {
  const auto index = static_cast<size_t>(index_of(row));
  return index < rows_.size() ? &rows_[index] : nullptr;
}

std::string ScheduleCheck::add(const SchedulerOutput& step) {
  const bool is_empty_step = step.step == last_step_ && step.scheduled.empty();
  if (last_step_ >= 0 && step.step != last_step_ + 1 && !is_empty_step) {
    return fmt::format("follows step {}", last_step_);
  }
  if (step.total_num_tokens > facts_.max_num_batched_tokens) {
    return fmt::format("{} tokens, more than the {} of a step",
                       step.total_num_tokens,
                       facts_.max_num_batched_tokens);
  }
  last_step_ = step.step;
  Step& planned = steps_[step.step];
  planned = {.grammar_rows = step.grammar_rows, .num_tokens = step.total_num_tokens};
  // In the order of effects, but rows advance before blocks are appended: a row that advances may leave blocks to others.
  std::string wrong;
  const auto each = [&wrong](const auto& list, const auto& check) {
    wrong = wrong.empty() ? first_of(list, check) : wrong;
  };
  each(step.finished_rows, [&](RowId row) { return release(row); });
  each(step.preempted_rows, [&](RowId row) { return release(row); });
  each(step.new_rows, [&](const NewRow& row) { return begin(row); });
  each(step.scheduled, [&](const ScheduledRow& row) { return advance(row, planned); });
  each(step.page_appends, [&](const PageAppend& pages) { return append(pages, step); });
  each(step.block_appends, [&](const BlockAppend& blocks) { return append(blocks, step); });
  each(step.scheduled, [&](const ScheduledRow& row) { return check_room(row); });
  each(step.grammar_rows, [&](RowId row) {
    const auto same = [row](const ScheduledRow& s) { return s.row == row && s.num_logits > 0; };
    return std::ranges::any_of(step.scheduled, same)
               ? std::string()
               : of_row(row, "has a grammar and does not sample");
  });
  if (wrong.empty() && step.max_mixed_prefill > 0 &&
      planned.num_prefill_tokens > step.max_mixed_prefill) {
    wrong = fmt::format("{} prompt tokens beside decoding rows, more than the {} that were allowed",
                        planned.num_prefill_tokens,
                        step.max_mixed_prefill);
  }
  return wrong;
}

std::string ScheduleCheck::release(RowId id) {
  Row* row = find(id);
  if (row == nullptr) {
    return of_row(id, fmt::format("of {} is released", rows_.size()));
  }
  // Without a beginning it is a row from before the first message.
  if (!row->is_live && row->is_whole) {
    return of_row(id, "is released but not live");
  }
  for (const Table& table : row->tables) {
    for (const BlockId block : table.blocks) {
      hold(block, -1);
    }
  }
  for (const PageId page : row->pages) {
    page_held_[static_cast<size_t>(index_of(page))] = 0;
  }
  const uint32_t generation = row->generation;
  *row = {.is_whole = true, .generation = generation};
  return {};
}

std::string ScheduleCheck::begin(const NewRow& added) {
  Row* row = find(added.row);
  if (row == nullptr) {
    return of_row(added.row, fmt::format("of {} is given out", rows_.size()));
  }
  if (row->is_live) {
    return of_row(added.row, "is given out twice");
  }
  if (added.generation <= row->generation && row->generation != 0) {
    return of_row(added.row,
                  fmt::format("has generation {} after {}", added.generation, row->generation));
  }
  if (added.num_computed_tokens < 0 || added.num_computed_tokens >= added.prefill_len ||
      added.prompt_len > added.prefill_len) {
    return of_row(added.row,
                  fmt::format("begins with {} of {} tokens computed, {} of them its prompt",
                              added.num_computed_tokens,
                              added.prefill_len,
                              added.prompt_len));
  }
  *row = {.is_live = true,
          .is_whole = true,
          .generation = added.generation,
          .prefill_len = added.prefill_len,
          .num_computed = added.num_computed_tokens,
          .tables = std::vector<Table>(facts_.kv.groups.size())};
  for (Table& table : row->tables) {
    table.is_known = true;
  }
  return {};
}

std::string ScheduleCheck::advance(const ScheduledRow& scheduled, Step& step) {
  Row* row = find(scheduled.row);
  if (row == nullptr || (!row->is_live && row->is_whole)) {
    return of_row(scheduled.row, "is scheduled but not live");
  }
  const auto same = [&](const Planned& other) { return other.row.row == scheduled.row; };
  if (std::ranges::any_of(step.rows, same)) {
    return of_row(scheduled.row, "is scheduled twice");
  }
  if (!row->is_live) {  // from before the first message
    row->is_live = true;
    row->num_computed = scheduled.num_computed_tokens;
    row->tables.resize(facts_.kv.groups.size());
  }
  if (scheduled.num_computed_tokens != row->num_computed) {
    return of_row(scheduled.row,
                  fmt::format("has {} tokens computed; {} were computed and confirmed",
                              scheduled.num_computed_tokens,
                              row->num_computed));
  }
  const bool is_prefill = row->num_computed < row->prefill_len;
  step.num_prefill_tokens += row->is_whole && is_prefill ? scheduled.num_tokens : 0;
  row->num_computed += scheduled.num_tokens;
  const bool ends_prefill = row->num_computed >= row->prefill_len;
  if (row->is_whole && ends_prefill != (scheduled.num_logits > 0)) {
    return of_row(scheduled.row,
                  fmt::format("has {} logits after {} tokens, with a prefill of {}",
                              scheduled.num_logits,
                              row->num_computed,
                              row->prefill_len));
  }
  step.rows.push_back(
      {.row = scheduled, .generation = row->generation, .has_generation = row->is_whole});
  drop_passed_blocks(*row);
  return {};
}

// A group with a window releases the blocks that no later query reads.
void ScheduleCheck::drop_passed_blocks(Row& row) {
  for (size_t group = 0; group < row.tables.size(); ++group) {
    const KvGroupSpec& spec = facts_.kv.groups[group];
    Table& table = row.tables[group];
    if (spec.window <= 0) {
      continue;
    }
    const int32_t passed = std::max(row.num_computed - spec.window + 1, 0) / spec.block_size;
    const int32_t count =
        std::clamp(passed - table.begin, 0, static_cast<int32_t>(table.blocks.size()));
    for (int32_t i = 0; i < count; ++i) {
      hold(table.blocks[static_cast<size_t>(i)], -1);
    }
    table.blocks.erase(table.blocks.begin(), table.blocks.begin() + count);
    table.begin += count;
  }
}

void ScheduleCheck::hold(BlockId block, int32_t change) {
  if (block != kNullBlock) {
    holders_[static_cast<size_t>(index_of(block))] += change;
  }
}

std::string ScheduleCheck::append(const BlockAppend& append, const SchedulerOutput& step) {
  Row* row = find(append.row);
  const auto group = static_cast<size_t>(append.group);
  if (row == nullptr || !row->is_live) {
    return of_row(append.row, "gets blocks but is not live");
  }
  if (group >= row->tables.size()) {
    return of_row(append.row, fmt::format("gets blocks of group {}", append.group));
  }
  if (facts_.kv.groups[group].kind == KvKind::kState) {
    return {};  // its cells are those of one step
  }
  Table& table = row->tables[group];
  if (!table.is_known) {
    table = {append.start, {}, true};
  }
  if (append.start != table.begin + static_cast<int32_t>(table.blocks.size())) {
    return of_row(append.row,
                  fmt::format("gets block {} of group {} after {}",
                              append.start,
                              append.group,
                              table.begin + static_cast<int32_t>(table.blocks.size())));
  }
  const int32_t block_size = facts_.kv.groups[group].block_size;
  const auto added = std::ranges::find(step.new_rows, append.row, &NewRow::row);
  const int32_t num_hit = added != step.new_rows.end() ? added->num_computed_tokens : 0;
  for (const BlockId block : slice(step.block_ids, append.blocks)) {
    const auto at = table.begin + static_cast<int32_t>(table.blocks.size());
    const bool is_hit = (at + 1) * block_size <= num_hit;
    const auto index = static_cast<size_t>(index_of(block));
    if (index >= holders_.size() || (block == kNullBlock && !is_hit)) {
      return of_row(append.row,
                    fmt::format("gets block {} of {}", index_of(block), holders_.size()));
    }
    if (!is_hit && holders_[index] > 0) {
      return of_row(append.row,
                    fmt::format("is to write block {}, which another row holds", index_of(block)));
    }
    table.blocks.push_back(block);
    hold(block, 1);
  }
  return {};
}

std::string ScheduleCheck::append(const PageAppend& append, const SchedulerOutput& step) {
  Row* row = find(append.row);
  if (row == nullptr || !row->is_live) {
    return of_row(append.row, "gets token pages but is not live");
  }
  if (row->is_whole && append.start != static_cast<int32_t>(row->pages.size())) {
    return of_row(append.row,
                  fmt::format("gets token page {} after {}", append.start, row->pages.size()));
  }
  for (const PageId page : slice(step.page_ids, append.pages)) {
    const auto index = static_cast<size_t>(index_of(page));
    if (index == 0 || index >= page_held_.size() || page_held_[index] != 0) {
      return of_row(append.row,
                    fmt::format("gets token page {}, which is not free", index_of(page)));
    }
    page_held_[index] = 1;
    row->pages.push_back(page);
  }
  return {};
}

// Whether the row has blocks and pages for all of its tokens.
std::string ScheduleCheck::check_room(const ScheduledRow& scheduled) {
  Row& row = *find(scheduled.row);
  for (size_t group = 0; group < row.tables.size(); ++group) {
    if (facts_.kv.groups[group].kind == KvKind::kState) {
      continue;
    }
    const Table& table = row.tables[group];
    const int64_t room = (table.begin + static_cast<int64_t>(table.blocks.size())) *
                         facts_.kv.groups[group].block_size;
    if (table.is_known && room < row.num_computed) {
      return of_row(scheduled.row,
                    fmt::format("computes {} tokens with blocks for {}", row.num_computed, room));
    }
  }
  const int64_t room = static_cast<int64_t>(row.pages.size()) * facts_.token_pages.page_size;
  if (row.is_whole && room < row.num_computed) {
    return of_row(scheduled.row,
                  fmt::format("computes {} tokens with pages for {}", row.num_computed, room));
  }
  drop_passed_blocks(row);  // those of this step too
  return {};
}

std::string ScheduleCheck::add(const GrammarOutput& grammar) {
  const auto found = steps_.find(last_step_);
  if (found == steps_.end()) {
    return "masks without a step";
  }
  Step& step = found->second;
  std::string wrong = first_of(grammar.masked_rows, [&](const MaskedRow& masked) {
    return is_among(masked.row, step.grammar_rows) ? std::string()
                                                   : of_row(masked.row, "has masks and no grammar");
  });
  if (!wrong.empty()) {
    return wrong;
  }
  return first_of(grammar.withheld_rows, [&](RowId id) {
    const auto planned =
        std::ranges::find(step.rows, id, [](const Planned& p) { return p.row.row; });
    if (planned == step.rows.end() || !is_among(id, step.grammar_rows)) {
      return of_row(id, "is withheld and has no grammar");
    }
    planned->is_withheld = true;
    find(id)->num_computed -= planned->row.num_logits;
    return std::string();
  });
}

std::string ScheduleCheck::add(const ModelRunnerOutput& output) {
  const auto found = steps_.find(output.step);
  if (found == steps_.end()) {
    return last_step_ < 0 || output.step < last_step_
               ? std::string()  // of a step before the first message
               : "an output without a step";
  }
  Step step = std::move(found->second);
  steps_.erase(found);
  if (output.rows.size() != step.rows.size()) {
    return fmt::format("{} rows in the output of {} rows", output.rows.size(), step.rows.size());
  }
  if (output.stats.num_toks != step.num_tokens) {
    return fmt::format("{} tokens were computed of {}", output.stats.num_toks, step.num_tokens);
  }
  return first_of(output.rows, [&](const RowOutput& row) {
    const auto planned =
        std::ranges::find(step.rows, row.row, [](const Planned& p) { return p.row.row; });
    return planned == step.rows.end() ? of_row(row.row, "has an output and was not scheduled")
                                      : take(*planned, row);
  });
}

std::string ScheduleCheck::take(Planned& planned, const RowOutput& output) {
  const RowId id = output.row;
  if (planned.has_generation && planned.generation != output.generation) {
    return of_row(
        id,
        fmt::format(
            "has an output of generation {} and not {}", output.generation, planned.generation));
  }
  if (output.kind == RowResult::kPooled) {
    return planned.row.num_logits == 1 ? std::string()
                                       : of_row(id, "has a vector before the end of its prompt");
  }
  const bool samples = planned.row.num_logits > 0 && !planned.is_withheld;
  const int32_t num_results = output.tokens.count + output.num_rejected;
  const int32_t expected = planned.row.num_logits;
  if (output.failure == RowFailure::kNone && num_results != expected) {
    return of_row(id,
                  fmt::format("has {} tokens and {} rejected of {} logits",
                              output.tokens.count,
                              output.num_rejected,
                              expected));
  }
  if (!samples && output.tokens.count > 0) {
    return of_row(id, "has tokens of logits that were withheld");
  }
  Row* row = find(id);
  const bool is_same =
      planned.has_generation ? row->generation == output.generation : !row->is_whole;
  if (samples && row->is_live && is_same) {
    row->num_computed -= output.num_rejected;
  }
  return {};
}

}  // namespace warprow
