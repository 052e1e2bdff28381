// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/fake_executor.h"

#include "base/check.h"

#include <algorithm>
#include <future>
#include <stdexcept>
#include <thread>

namespace warprow::testing {

TokenId toy_next_token(const std::vector<TokenId>& context,
                       const SamplingParams& params,
                       int32_t vocab_size) {
  uint64_t hash = params.is_greedy() ? 14695981039346656037U : params.seed * 2654435761U + 1;
  for (const TokenId token : context) {
    hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211U;
  }
  return static_cast<TokenId>((hash >> 20) % static_cast<uint64_t>(vocab_size));
}

TokenId toy_masked_token(TokenId token, std::span<const uint32_t> mask, int32_t vocab_size) {
  const auto allowed = [mask](TokenId id) {
    const auto bit = static_cast<uint32_t>(id);
    return (mask[bit / 32] >> (bit % 32) & 1U) != 0;
  };
  for (int32_t i = 0; i < vocab_size && !mask.empty() && !allowed(token); ++i) {
    token = (token + 1) % vocab_size;
  }
  return token;
}

float toy_logprob(TokenId token) { return -0.125F * static_cast<float>(token % 16); }
int32_t toy_rank(TokenId token) { return 1 + token % 5; }

FakeExecutor::FakeExecutor(const FakeModel& model) : model_(model) {
  facts_.architecture = "toy";
  facts_.vocab_size = model.vocab_size;
  facts_.max_model_len = model.max_model_len;
  facts_.max_num_seqs = model.max_num_seqs;
  facts_.max_num_batched_tokens = model.max_num_batched_tokens;
  facts_.target_itl_ms = model.target_itl_ms;
  facts_.max_drafts = model.num_drafts;
  facts_.copies_blocks = true;
  KvGroupSpec group;
  group.num_layers = 1;
  group.num_kv_heads = 1;
  group.head_dim_k = 1;
  group.head_dim_v = 1;
  group.block_size = model.block_size;
  group.kernel_block_size = model.block_size;
  facts_.kv.groups.push_back(group);
  facts_.kv.num_blocks = model.num_blocks;
  rows_.resize(static_cast<size_t>(model.max_num_seqs));
  kv_.assign(static_cast<size_t>(model.num_blocks) * static_cast<size_t>(model.block_size), -1);
  if (model.notifies_outputs) {
    notifier_ = std::jthread([this](const std::stop_token& stop) { notify_when_due(stop); });
  }
}

FakeExecutor::~FakeExecutor() = default;

bool FakeExecutor::set_wake_up(WakeUp* wake_up) {
  const std::scoped_lock lock(due_mutex_);
  wake_up_ = wake_up;
  return model_.notifies_outputs;
}

// Notifies the engine of an output once it can be taken. This also stands for another process's answer.
void FakeExecutor::notify_when_due(const std::stop_token& stop) {
  std::unique_lock lock(due_mutex_);
  while (due_changed_.wait(lock, stop, [this] { return !due_.empty(); })) {
    const auto when = due_.front();
    due_.pop_front();
    while (!stop.stop_requested() && (std::chrono::steady_clock::now() < when || gate_is_shut())) {
      due_changed_.wait_for(lock, stop, std::chrono::milliseconds(1), [] { return false; });
    }
    if (wake_up_ != nullptr) {
      wake_up_->notify();
    }
  }
}

std::optional<DataParallelShape> FakeExecutor::idle_step() {
  if (model_.empty_steps_wanted == nullptr || *model_.empty_steps_wanted <= 0) {
    return std::nullopt;
  }
  return DataParallelShape{.num_toks_padded = 8};
}

RankReplies FakeExecutor::collective_rpc(std::string_view /*operation*/,
                                         const std::string& /*argument*/,
                                         RankSet /*ranks*/) {
  std::promise<std::vector<std::string>> replies;
  replies.set_value({""});
  return replies.get_future();
}

FakeExecutor::Row& FakeExecutor::live_row(RowId id) {
  WR_CHECK(index_of(id) >= 0 && index_of(id) < model_.max_num_seqs);
  Row& row = rows_[static_cast<size_t>(index_of(id))];
  WR_CHECK(row.live, "row {} is free", index_of(id));
  return row;
}

void FakeExecutor::execute_model(const SchedulerOutput& step) {
  WR_CHECK(!pending_sample_, "execute_model before sample_tokens");
  WR_CHECK_LT(num_outstanding(), model_.max_concurrent_batches);
  if (model_.throw_at_step == stats_.steps) {
    throw std::runtime_error("the toy device is broken");
  }
  executing_ = step;
  forward_ends_at_ =
      std::max(device_free_at_, std::chrono::steady_clock::now()) + model_.forward_time;
  pending_sample_ = true;
  ++stats_.steps;
}

void FakeExecutor::sample_tokens(const GrammarOutput* grammar) {
  WR_CHECK(pending_sample_, "sample_tokens with nothing pending");
  const GrammarOutput none;
  const GrammarOutput& masks = grammar == nullptr ? none : *grammar;
  pending_sample_ = false;
  release(executing_.finished_rows);
  release(executing_.preempted_rows);
  add_rows(executing_);
  append_blocks(executing_);
  Pending pending;
  pending.output.step = executing_.step;
  int32_t total = 0;
  for (const ScheduledRow& scheduled : executing_.scheduled) {
    total += scheduled.num_tokens;
    pending.output.has_logprobs |= live_row(scheduled.row).params.num_logprobs >= 0;
  }
  WR_CHECK_EQ(total, executing_.total_num_tokens);
  WR_CHECK_LE(total, model_.max_num_batched_tokens);
  for (const ScheduledRow& scheduled : executing_.scheduled) {
    run_row(scheduled, masks, pending.output);
  }
  pending.output.stats.num_rows = static_cast<int32_t>(executing_.scheduled.size());
  pending.output.stats.num_toks = total;
  device_free_at_ = std::max(forward_ends_at_, std::chrono::steady_clock::now()) +
                    model_.step_time + total * model_.tok_time;
  pending.ready_at = device_free_at_;
  if (model_.notifies_outputs) {
    const std::scoped_lock lock(due_mutex_);
    due_.push_back(pending.ready_at);
    due_changed_.notify_one();
  }
  if (executing_.data_parallel.num_toks_padded > 0) {
    WR_CHECK_EQ(total, 0);
    --*model_.empty_steps_wanted;
  }
  outputs_.push_back(std::move(pending));
  stats_.max_steps_in_flight = std::max<int64_t>(stats_.max_steps_in_flight, num_outstanding());
}

void FakeExecutor::release(const std::vector<RowId>& rows) {
  for (const RowId id : rows) {
    live_row(id) = Row{};
  }
}

void FakeExecutor::add_rows(const SchedulerOutput& step) {
  for (const NewRow& added : step.new_rows) {
    WR_CHECK(index_of(added.row) >= 0 && index_of(added.row) < model_.max_num_seqs);
    Row& row = rows_[static_cast<size_t>(index_of(added.row))];
    WR_CHECK(!row.live, "row {} is given out twice", index_of(added.row));
    WR_CHECK_EQ(added.tokens.count, added.prefill_len);
    WR_CHECK_LT(added.num_computed_tokens, added.prefill_len);
    const auto first = step.token_ids.begin() + added.tokens.begin;
    row = Row{true,
              added.generation,
              {first, first + added.tokens.count},
              added.num_computed_tokens,
              added.params,
              {}};
  }
}

void FakeExecutor::append_blocks(const SchedulerOutput& step) {
  for (const BlockAppend& append : step.block_appends) {
    Row& row = live_row(append.row);
    WR_CHECK_EQ(append.group, 0);
    WR_CHECK_EQ(append.start, row.blocks.size());
    const auto first = step.block_ids.begin() + append.blocks.begin;
    row.blocks.insert(row.blocks.end(), first, first + append.blocks.count);
  }
  for (const BlockCopy& copy : step.block_copies) {
    const auto size = static_cast<std::ptrdiff_t>(model_.block_size);
    const auto from = kv_.begin() + index_of(copy.from) * size;
    std::copy(from, from + size, kv_.begin() + index_of(copy.to) * size);
    ++num_block_copies_;
  }
}

void FakeExecutor::run_row(const ScheduledRow& scheduled,
                           const GrammarOutput& grammar,
                           ModelRunnerOutput& output) {
  Row& row = live_row(scheduled.row);
  write_kv(row, scheduled);
  RowOutput result;
  result.row = scheduled.row;
  result.generation = row.generation;
  result.tokens.begin = static_cast<int32_t>(output.token_ids.size());
  const bool samples = row.num_computed + scheduled.num_tokens - scheduled.num_drafts ==
                       static_cast<int32_t>(row.tokens.size());
  WR_CHECK_EQ(scheduled.num_logits, samples ? 1 + scheduled.num_drafts : 0);
  if (samples) {
    sample_row(row, scheduled, grammar, result, output);
    result.num_rejected = scheduled.num_logits - result.tokens.count;
  }
  row.num_computed += scheduled.num_tokens - result.num_rejected;
  if (result.failure != RowFailure::kNone) {
    ++row.num_computed;
    row.tokens.push_back(0);  // for the step that is already planned
  }
  if (scheduled.wants_drafts) {
    WR_CHECK(samples, "drafts for a row that does not sample");
    result.drafts = {static_cast<int32_t>(output.draft_token_ids.size()),
                     static_cast<int32_t>(row.drafts.size())};
    output.draft_token_ids.insert(
        output.draft_token_ids.end(), row.drafts.begin(), row.drafts.end());
  }
  output.rows.push_back(result);
}

void FakeExecutor::write_kv(Row& row, const ScheduledRow& scheduled) {
  WR_CHECK_GE(scheduled.num_tokens, 1);
  WR_CHECK_GE(scheduled.num_computed_tokens, row.num_computed);
  WR_CHECK(model_.num_drafts > 0 || scheduled.num_computed_tokens == row.num_computed);
  const auto slot_of = [&](int32_t position) {
    const auto block = static_cast<size_t>(position / model_.block_size);
    WR_CHECK_LT(block, row.blocks.size());
    const int32_t id = index_of(row.blocks[block]);
    WR_CHECK(id > 0 && id < model_.num_blocks);
    return static_cast<size_t>(id * model_.block_size + position % model_.block_size);
  };
  std::vector<TokenId> tokens = row.tokens;
  WR_CHECK_LE(scheduled.num_drafts, std::ssize(row.drafts));
  tokens.insert(tokens.end(), row.drafts.begin(), row.drafts.begin() + scheduled.num_drafts);
  const int32_t end = row.num_computed + scheduled.num_tokens;
  WR_CHECK_LE(end, tokens.size());
  for (int32_t position = row.num_computed; position < end; ++position) {
    kv_[slot_of(position)] = tokens[static_cast<size_t>(position)];
  }
  for (int32_t position = 0; position < end; ++position) {
    WR_CHECK_EQ(kv_[slot_of(position)], tokens[static_cast<size_t>(position)]);
  }
}

// Samples from the first logit to the first one that differs from its draft or has no mask.
void FakeExecutor::sample_row(Row& row,
                              const ScheduledRow& scheduled,
                              const GrammarOutput& grammar,
                              RowOutput& result,
                              ModelRunnerOutput& output) {
  result.kind = RowResult::kTokens;
  const auto is_row = [&](RowId other) { return other == scheduled.row; };
  const bool withheld = std::ranges::any_of(grammar.withheld_rows, is_row);
  const auto words = static_cast<size_t>((model_.vocab_size + 31) / 32);
  int32_t num_masks = 0;
  std::span<const uint32_t> masks(grammar.bitmask);
  for (const MaskedRow& masked : grammar.masked_rows) {
    if (is_row(masked.row)) {
      num_masks = masked.num_masks;
      break;
    }
    masks = masks.subspan(static_cast<size_t>(masked.num_masks) * words);
  }
  if (num_masks > 0 || withheld) {
    WR_CHECK(std::ranges::any_of(executing_.grammar_rows, is_row),
             "a mask for a row that wants none");
    WR_CHECK_LE(num_masks, scheduled.num_logits);
  }
  if (withheld) {
    return;
  }
  const std::vector<TokenId> drafts = row.drafts;
  const int32_t num_drawn = num_masks > 0 ? num_masks : scheduled.num_logits;
  for (int32_t i = 0; i < num_drawn; ++i) {
    std::span<const uint32_t> mask;
    if (num_masks > 0) {
      mask = masks.subspan(static_cast<size_t>(i) * words, words);
      if (std::ranges::all_of(mask, [](uint32_t word) { return word == 0; })) {
        result.failure = RowFailure::kNothingLeft;
        break;
      }
    }
    ++result.tokens.count;
    row.last_mask.assign(mask.begin(), mask.end());
    sample(row, mask, output);
    if (i < scheduled.num_drafts && row.tokens.back() != drafts[static_cast<size_t>(i)]) {
      break;
    }
  }
  propose(row);
}

// Drafts are wrong, or absent, from a random position on.
void FakeExecutor::propose(Row& row) {
  row.drafts.clear();
  const auto num_right = random_() % static_cast<uint32_t>(model_.num_drafts + 1);
  const bool none_behind = random_() % 4 == 0;
  std::vector<TokenId> context = row.tokens;
  for (int32_t i = 0; i < model_.num_drafts; ++i) {
    TokenId token = toy_masked_token(
        toy_next_token(context, row.params, model_.vocab_size), row.last_mask, model_.vocab_size);
    if (static_cast<uint32_t>(i) >= num_right) {
      token = none_behind ? -1 : (token + 1) % model_.vocab_size;
    }
    context.push_back(token);
    row.drafts.push_back(token);
  }
}

bool FakeExecutor::forward_done() const {
  return !model_.forward_outlasts_masks && std::chrono::steady_clock::now() >= forward_ends_at_;
}

void FakeExecutor::sample(Row& row, std::span<const uint32_t> mask, ModelRunnerOutput& output) {
  const TokenId token = toy_masked_token(
      toy_next_token(row.tokens, row.params, model_.vocab_size), mask, model_.vocab_size);
  row.tokens.push_back(token);
  output.token_ids.push_back(token);
  if (!output.has_logprobs) {
    return;
  }
  TokenLogprobs logprobs;
  if (row.params.num_logprobs >= 0) {
    logprobs.logprob = toy_logprob(token);
    logprobs.rank = toy_rank(token);
    logprobs.top = {static_cast<int32_t>(output.top_ids.size()), row.params.num_logprobs};
    for (int32_t i = 0; i < row.params.num_logprobs; ++i) {
      output.top_ids.push_back((token + i) % model_.vocab_size);
      output.top_logprobs.push_back(toy_logprob(output.top_ids.back()));
    }
  }
  output.logprobs.push_back(logprobs);
}

bool FakeExecutor::output_ready() const {
  return !outputs_.empty() && !gate_is_shut() &&
         std::chrono::steady_clock::now() >= outputs_.front().ready_at;
}

void FakeExecutor::take_output(ModelRunnerOutput& output) {
  while (gate_is_shut()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  WR_CHECK(!outputs_.empty(), "take_output with nothing outstanding");
  std::this_thread::sleep_until(outputs_.front().ready_at);
  output = std::move(outputs_.front().output);
  outputs_.pop_front();
}

}  // namespace warprow::testing
