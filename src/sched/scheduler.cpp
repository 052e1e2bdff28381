// SPDX-License-Identifier: Apache-2.0
#include "sched/scheduler.h"

#include "base/check.h"
#include "base/math.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// Where drafts do not pay, a drafting model still makes one draft a row in kTrialSteps of every kTrialPeriod steps, and
// while at least 1 / kTrialShare of the drafting rows have had too few drafts to judge (DraftRecord::is_tested).
constexpr int64_t kTrialPeriod = 128;
constexpr int64_t kTrialSteps = 8;
constexpr int32_t kTrialShare = 4;

// The order of the waiting list; without the priority policy all priorities are 0.
bool comes_before(const LiveRequest& a, const LiveRequest& b) {
  return std::pair(a.priority, a.arrival) < std::pair(b.priority, b.arrival);
}

// Prompt logprobs and hidden states need every prompt token computed, so a cached prefix is of no use.
// Once there is an output, they have been reported.
bool wants_whole_prompt(const LiveRequest& r) {
  return r.params.reports_prompt() && r.num_known() == r.prompt_len;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config)
    : config_(std::move(config)),
      kv_(config_.kv,
          {.max_step_tokens = config_.max_num_batched_tokens + config_.max_overhang(),
           .max_row_len = config_.max_row_len(),
           .token_pages =
               token_pages_or_all(config_.token_pages, config_.max_num_seqs, config_.max_row_len()),
           .enable_prefix_caching = config_.enable_prefix_caching,
           .fence_freed_blocks = config_.fence_freed_blocks,
           .copies_blocks = config_.copies_blocks,
           .lookahead = config_.draft_lookahead}),
      rows_(config_.max_num_seqs),
      adapters_(config_.max_loras),
      running_(requests_),
      waiting_(requests_) {
  WR_CHECK_GE(config_.max_num_seqs, 1);
  WR_CHECK_GE(config_.max_num_batched_tokens, 1);
  WR_CHECK_GE(config_.max_model_len, 2);
  WR_CHECK_GE(config_.num_stages, 1);
  WR_CHECK_GE(config_.max_concurrent_steps, config_.num_stages);
  WR_CHECK_GE(config_.num_drafts, 0);
  WR_CHECK_LE(config_.num_drafts, kMaxDrafts);
  const auto max_rows = static_cast<size_t>(config_.max_num_seqs);
  row_owner_.resize(max_rows, -1);
  finished_rows_.reserve(max_rows);
  acceptance_.reserve(max_rows);
  records_.resize(static_cast<size_t>(config_.max_concurrent_steps));
  for (StepRecord& record : records_) {
    record.rows.resize(max_rows);
  }
}

Result<void> Scheduler::check(int64_t prompt_len, int64_t max_tokens) const {
  const auto refuse = [](std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message));
  };
  if (prompt_len < 1) {
    return refuse("the prompt is empty; at least 1 token is needed");
  }
  if (max_tokens < 1) {
    return refuse(fmt::format("max_tokens is {}; at least 1 is needed", max_tokens));
  }
  if (prompt_len >= config_.max_model_len) {
    return refuse(
        fmt::format("the prompt has {} tokens; max_model_len {} leaves room for at most {}",
                    prompt_len,
                    config_.max_model_len,
                    config_.max_model_len - 1));
  }
  if (!config_.enable_chunked_prefill && prompt_len > config_.max_num_batched_tokens) {
    return refuse(fmt::format(
        "the prompt has {} tokens; without chunked prefill max_num_batched_tokens {} is the limit",
        prompt_len,
        config_.max_num_batched_tokens));
  }
  // The last output is never an input, so its KV needs no place.
  const int64_t num_kv_tokens = std::min<int64_t>(prompt_len + max_tokens, config_.max_model_len) -
                                1 + config_.max_overhang();
  const int32_t needed = kv_.max_blocks_for(static_cast<int32_t>(num_kv_tokens));
  const int32_t present = kv_.pool().num_blocks() - 1;
  if (needed > present) {
    return refuse(fmt::format("prompt of {} and max_tokens {} need {} KV blocks; the cache has {}",
                              prompt_len,
                              max_tokens,
                              needed,
                              present));
  }
  return {};
}

Result<void> Scheduler::add_request(const Request& request) {
  if (auto checked = check(static_cast<int64_t>(request.prompt.size()), request.max_tokens);
      !checked) {
    return checked;
  }
  if (!adapters_.knows(request.adapter)) {
    return fail(ErrorCode::kNotFound, fmt::format("adapter {} is not loaded", request.adapter));
  }
  adapters_.add_live(request.adapter, 1);
  const int32_t index = requests_.add(request.id);
  LiveRequest& r = requests_[index];
  const auto prompt_len = static_cast<int32_t>(request.prompt.size());
  r.state = LiveRequest::State::kWaiting;
  r.row = kNoRow;
  r.num_computed = r.least_pending = r.most_pending = r.prefill_len = 0;
  r.sampled_step = 0;
  r.prompt_len = prompt_len;
  r.max_len = std::min(request.max_tokens, config_.max_model_len - prompt_len) + prompt_len;
  r.stop_from_len = prompt_len + std::min(request.params.min_tokens, r.max_len - prompt_len);
  r.tokens.reserve(static_cast<size_t>(r.max_len));
  r.tokens.assign(request.prompt.begin(), request.prompt.end());
  r.embeds = request.embeds;
  r.arrival = next_arrival_++;
  r.priority = config_.policy == SchedulerConfig::Policy::kPriority ? request.priority : 0;
  r.num_cached_tokens = -1;
  r.params = request.params;
  r.adapter = request.adapter;
  r.eos_token_ids = request.eos_token_ids;
  r.stop_token_ids = request.stop_token_ids;
  r.token_lists = request.token_lists;
  r.grammar = request.grammar;
  r.held = false;
  r.drafts.reset();
  r.may_draft = request.may_draft;
  kv_.init(r.kv,
           {.adapter = request.adapter, .cache_salt = request.cache_salt},
           r.max_len + config_.max_overhang());
  r.kv.copies_tail = request.copies_tail && kv_.copies_tails();
  enqueue(index);
  return {};
}

bool Scheduler::abort_request(uint64_t id) {
  const int32_t index = requests_.find(id);
  if (index >= 0) {
    end(index);
  }
  return index >= 0;
}

std::vector<uint64_t> Scheduler::abort_all() {
  std::vector<uint64_t> ids;
  for (RequestList* list : {&running_, &waiting_}) {
    while (list->front() >= 0) {
      ids.push_back(requests_[list->front()].id);
      end(list->front());
    }
  }
  return ids;
}

void Scheduler::forget_computed() {
  WR_CHECK_EQ(num_in_flight_, 0);
  while (running_.back() >= 0) {
    finished_rows_.push_back(requests_[running_.back()].row);
    leave_row(running_.back());
  }
  reset_prefix_cache();
}

void Scheduler::reset_prefix_cache() {
  WR_CHECK_EQ(running_.size(), 0);
  WR_CHECK_EQ(num_in_flight_, 0);
  kv_.forget_prefixes();
}

bool Scheduler::schedule(SchedulerOutput& out, int32_t max_mixed_prefill) {
  WR_CHECK_GE(max_mixed_prefill, 0);
  out.clear();
  const int32_t most = has_deep_chunk_ ? config_.num_stages : config_.max_concurrent_steps;
  if (num_in_flight_ >= most) {
    return false;
  }
  out.step = next_step_;
  out.results_through = taken_step_;
  out.max_mixed_prefill = mixed_prefill_limit(max_mixed_prefill);
  out.finished_rows.assign(finished_rows_.begin(), finished_rows_.end());
  finished_rows_.clear();
  budget_ = config_.max_num_batched_tokens;
  prefill_budget_ = out.max_mixed_prefill > 0 ? std::min(budget_, out.max_mixed_prefill) : budget_;
  long_chunk_ = max_long_chunk();
  has_deep_chunk_ = has_deep_long_chunk_ = false;
  num_turns_ = std::clamp(running_.size(), 1, config_.num_stages);
  decode_budget_ = ceil_div(running_.size(), num_turns_);
  decide_drafts();
  schedule_running(out);
  refusal_ = WaitReason::kNone;
  // Do not admit in a step that preempted.
  if (out.preempted_rows.empty()) {
    while (budget_ > 0 && prefill_budget_ > 0 && waiting_.size() > 0 && rows_.num_free() > 0 &&
           admit_next(out)) {
    }
  }
  if (out.scheduled.empty() && out.finished_rows.empty() && out.preempted_rows.empty()) {
    return false;
  }
  stats_.wait_reason = why_waiting(out);
  decide_proposals(out);
  commit_step(out);
  return true;
}

WaitReason Scheduler::why_waiting(const SchedulerOutput& out) const {
  if (waiting_.size() == 0) {
    return WaitReason::kNone;
  }
  if (!out.preempted_rows.empty()) {
    return WaitReason::kPreemption;
  }
  if (rows_.num_free() == 0) {
    return WaitReason::kRows;
  }
  if (refusal_ != WaitReason::kNone) {
    return refusal_;
  }
  return budget_ > 0 ? WaitReason::kRation : WaitReason::kTokens;
}

// Whether the row decodes and its turn comes in a later step. Without planning ahead it must first know its last token.
bool Scheduler::is_between_turns(const LiveRequest& r) const {
  if (decode_budget_ == 0) {
    return r.num_computed >= r.prefill_len;
  }
  const bool plans_ahead = config_.max_concurrent_steps > config_.num_stages;
  return r.least_pending > 0 && (!plans_ahead || next_step_ - r.sampled_step < num_turns_);
}

// SchedulerOutput::max_mixed_prefill of this step.
int32_t Scheduler::mixed_prefill_limit(int32_t max_mixed_prefill) const {
  if (max_mixed_prefill == 0 || !config_.enable_chunked_prefill) {
    return 0;
  }
  int32_t num_decodes = 0;
  for (int32_t i = running_.front(); i >= 0; i = requests_[i].next) {
    num_decodes += requests_[i].num_computed >= requests_[i].prefill_len ? 1 : 0;
  }
  return num_decodes == 0
             ? 0
             : std::max({max_mixed_prefill, kMinMixedPrefill, kMinPrefillPerDecode * num_decodes});
}

// Tokens of a long prefill: all of the step unless a short request wants some, which it would wait for
// until the long one is done. Of the few prompt tokens beside rows that decode it leaves half to other prompts.
int32_t Scheduler::max_long_chunk() const {
  if (config_.long_prefill_token_threshold == 0 || !config_.enable_chunked_prefill ||
      !has_short_request(/*prompts_only=*/false)) {
    return budget_;
  }
  const bool shares_ration = prefill_budget_ < budget_ && has_short_request(/*prompts_only=*/true);
  return shares_ration ? std::min(config_.long_prefill_token_threshold, (prefill_budget_ + 1) / 2)
                       : config_.long_prefill_token_threshold;
}

// Whether anything but long prefills runs, or can be admitted as far as known. prompts_only: and has
// prompt tokens left.
bool Scheduler::has_short_request(bool prompts_only) const {
  for (int32_t i = running_.front(); i >= 0; i = requests_[i].next) {
    const LiveRequest& r = requests_[i];
    if (!is_long_prefill(r.num_known(), r.num_computed) &&
        (!prompts_only || r.num_computed < r.prefill_len)) {
      return true;
    }
  }
  const int32_t first = waiting_.front();
  if (first < 0 || rows_.num_free() == 0 || was_refused(requests_[first])) {
    return false;
  }
  for (int32_t i = first; i >= 0; i = requests_[i].next) {
    if (!is_long_prefill(requests_[i].num_known(), 0)) {
      return true;
    }
  }
  return false;
}

bool Scheduler::is_long_prefill(int32_t num_known, int32_t num_computed) const {
  return config_.long_prefill_token_threshold > 0 && num_known > config_.long_prompt_len &&
         num_known - num_computed > config_.long_prefill_token_threshold;
}

// `chunk` prompt tokens after num_computed ones, or what max_prefill_pairs leaves of them.
int32_t Scheduler::limit_deep_chunk(int32_t chunk, int32_t num_computed, bool is_long) {
  if (config_.max_prefill_pairs == 0 || !config_.enable_chunked_prefill ||
      int64_t{chunk} * num_computed < config_.max_prefill_pairs) {
    return chunk;
  }
  if (is_long && has_deep_long_chunk_) {
    return 0;
  }
  has_deep_chunk_ = true;
  has_deep_long_chunk_ = has_deep_long_chunk_ || is_long;
  const int64_t most =
      std::max<int64_t>(config_.max_prefill_pairs / num_computed, config_.min_deep_chunk);
  return static_cast<int32_t>(std::min<int64_t>(chunk, most));
}

void Scheduler::schedule_running(SchedulerOutput& out) {
  for (int32_t index = running_.front(); index >= 0 && budget_ > 0;) {
    index = advance_running(index, out);
  }
}

// Schedules the request's tokens for this step, if budgets and blocks allow any.
// Returns the next running request.
int32_t Scheduler::advance_running(int32_t index, SchedulerOutput& out) {
  LiveRequest& r = requests_[index];
  if (r.num_known() + r.least_pending >= r.max_len || r.held) {
    return r.next;  // it certainly ends with the outputs in flight, or is held for its mask
  }
  if (config_.num_stages > 1 && is_between_turns(r)) {
    return r.next;
  }
  const bool is_prefill = r.num_computed < r.prefill_len;
  const bool is_long = is_prefill && is_long_prefill(r.num_known(), r.num_computed);
  int32_t room = budget_;
  if (is_prefill) {
    room = std::min({room, prefill_budget_, is_long ? long_chunk_ : room});
  }
  int32_t n = std::min(r.num_known() + r.most_pending - r.num_computed, room);
  n = is_prefill ? limit_deep_chunk(n, r.num_computed, is_long) : n;
  if (n == 0) {
    return r.next;
  }
  int32_t num_drafts = is_prefill ? 0 : num_drafts_of(r);
  if (num_drafts > room - n) {
    if (config_.whole_drafts) {
      return r.next;
    }
    num_drafts = room - n;
  }
  n += num_drafts;
  if (r.least_computed() >= r.kv.window_at) {
    kv_.drop_outside_windows(r.kv, r.least_computed(), last_step());
  }
  const auto end = [&] { return r.num_computed + n; };
  while (end() > r.kv.capacity && !kv_.grow(r.kv, end(), r.row, out)) {
    if (num_drafts > 0 && !config_.whole_drafts) {  // drafts preempt no request
      n -= num_drafts;
      num_drafts = 0;
      continue;
    }
    if (kv_.waits_for_steps(r.kv, end())) {
      return r.next;
    }
    const int32_t victim = pick_victim();
    const int32_t next = r.next;
    preempt(victim, out);
    if (victim == index) {
      return next;
    }
  }
  const ScheduledRow scheduled{r.row, n, r.num_computed, num_drafts};
  out.scheduled.push_back(scheduled);  // by reference: the other overload is not inlined
  budget_ -= n;
  prefill_budget_ -= is_prefill ? n : 0;
  decode_budget_ -= is_prefill ? 0 : 1;
  return r.next;
}

// The length that all rows of the step draft.
int32_t Scheduler::drafts_of_step() {
  acceptance_.clear();
  int32_t num_rows = 0;
  for (int32_t i = running_.front(); i >= 0; i = requests_[i].next) {
    const LiveRequest& r = requests_[i];
    if (r.num_computed >= r.prefill_len) {
      ++num_rows;
      if (r.may_draft) {
        acceptance_.push_back(r.drafts.acceptance());
      }
    }
  }
  return acceptance_.empty() ? 0
                             : common_drafts(acceptance_,
                                             num_rows,
                                             {config_.draft_knee, config_.draft_forward},
                                             config_.num_drafts,
                                             wanted_drafts_);
}

// The drafts that the step verifies: no more than the one before made.
void Scheduler::decide_drafts() {
  if (config_.draft_knee == 0) {
    return;
  }
  wanted_drafts_ = drafts_of_step();
  step_drafts_ = config_.draft_lookahead == 0 || proposals_ < 0
                     ? wanted_drafts_
                     : std::min(wanted_drafts_, proposals_);
}

// The drafts that a drafting model makes for the next step: as many as would have paid now, or one to find out.
void Scheduler::decide_proposals(const SchedulerOutput& out) {
  if (config_.draft_knee == 0 || config_.draft_lookahead == 0) {
    return;
  }
  num_plain_steps_ = wanted_drafts_ > 0 ? 0 : num_plain_steps_ + 1;
  next_proposals_ = wanted_drafts_ == 0 && tries_drafts(out) ? 1 : wanted_drafts_;
}

// Whether a drafting model makes a draft although drafts did not pay lately: in a step with prompts, whose keys and values
// it needs; while many rows have untested drafts; and in a few steps of every kTrialPeriod.
bool Scheduler::tries_drafts(const SchedulerOutput& out) const {
  if (!drafts_may_pay(std::max(running_.size(), 1), {config_.draft_knee, config_.draft_forward})) {
    return false;
  }
  if (num_plain_steps_ % kTrialPeriod >= kTrialPeriod - kTrialSteps) {
    return true;
  }
  int32_t num_drafting = 0;
  int32_t num_untested = 0;
  for (const ScheduledRow& s : out.scheduled) {
    const LiveRequest& r = requests_[row_owner_[static_cast<size_t>(index_of(s.row))]];
    if (r.may_draft && s.num_computed_tokens < r.prefill_len) {
      return true;
    }
    num_drafting += r.may_draft ? 1 : 0;
    num_untested += r.may_draft && !r.drafts.is_tested() ? 1 : 0;
  }
  return num_untested > 0 && num_untested * kTrialShare >= num_drafting;
}

// Also for a request that may end sooner: rows of equal length are worth more than the drafts saved.
int32_t Scheduler::num_drafts_of(LiveRequest& r) {
  if (config_.num_drafts == 0 || !r.may_draft) {
    return 0;
  }
  if (config_.draft_knee > 0) {
    stats_.num_undrafted += step_drafts_ == 0 ? 1 : 0;
    return step_drafts_;
  }
  if (config_.draft_cost == 0) {
    return config_.num_drafts;
  }
  const int32_t num_rows = running_.size();
  const int32_t num_drafts = r.drafts.decide(draft_cost_beside(config_.draft_cost, num_rows),
                                             most_drafts_beside(num_rows, config_.num_drafts));
  stats_.num_undrafted += num_drafts == 0 ? 1 : 0;
  return num_drafts;
}

bool Scheduler::admit_next(SchedulerOutput& out) {
  const auto refuse = [this](WaitReason reason) {
    refusal_ = reason;
    return false;
  };
  const int32_t index = next_waiting();
  if (index < 0) {
    return refuse(WaitReason::kAdapter);
  }
  LiveRequest& r = requests_[index];
  if (r.least_pending > 0) {
    return refuse(
        WaitReason::kOutputs);  // preempted with outputs in flight: its prefill is not known yet
  }
  if (was_refused(r)) {
    return refuse(WaitReason::kBlocks);
  }
  // Compute at least the last known token: its logits are needed.
  const int32_t hit =
      kv_.find_prefix(r.kv, r.tokens, wants_whole_prompt(r) ? 0 : r.num_known() - 1);
  const int32_t rest = r.num_known() - hit;
  // Without chunked prefill the request waits for a step that takes it whole, unless its outputs made it
  // too long for any step.
  if (!config_.enable_chunked_prefill && rest > budget_ && rest <= config_.max_num_batched_tokens) {
    return refuse(WaitReason::kTokens);
  }
  int32_t chunk = is_long_prefill(r.num_known(), hit) ? long_chunk_ : rest;
  // A prefix that others have too, without a checkpoint of its states: the first chunk leaves one.
  if (config_.enable_chunked_prefill && kv_.shared_prefix() > hit) {
    chunk = std::min(chunk, kv_.shared_prefix() + kv_.checkpoint_unit() - hit);
  }
  // Not as a long prefill: those behind it would wait to be admitted until the running one is done.
  const int32_t n =
      limit_deep_chunk(std::min({rest, chunk, budget_, prefill_budget_}), hit, /*is_long=*/false);
  if (!kv_.admit(r.kv, {rows_.next(), hit, hit + n, r.num_known()}, out)) {
    refused_arrival_ = r.arrival;
    refused_at_ = kv_.num_changes();
    return refuse(WaitReason::kBlocks);
  }
  enter_row(index, hit, out);
  out.scheduled.push_back({r.row, n, hit});
  budget_ -= n;
  prefill_budget_ -= n;
  return true;
}

bool Scheduler::was_refused(const LiveRequest& request) const {
  return request.arrival == refused_arrival_ && kv_.num_changes() == refused_at_;
}

void Scheduler::enter_row(int32_t index, int32_t num_hit, SchedulerOutput& out) {
  LiveRequest& r = requests_[index];
  num_passed_ += index != waiting_.front() && r.adapter >= 0 ? 1 : 0;
  adapters_.add_running(r.adapter, 1);
  waiting_.erase(index);
  running_.insert_after(running_.back(), index);
  r.state = LiveRequest::State::kRunning;
  r.row = rows_.take();
  row_owner_[static_cast<size_t>(index_of(r.row))] = index;
  r.num_computed = num_hit;
  r.prefill_len = r.num_known();
  if (r.num_cached_tokens < 0) {
    r.num_cached_tokens = num_hit;
  }
  stats_.num_prefix_hit_tokens += num_hit;

  NewRow& row = out.new_rows.emplace_back();
  row.row = r.row;
  row.generation = rows_.generation(r.row);
  row.prompt_len = r.prompt_len;
  row.prefill_len = r.prefill_len;
  row.num_computed_tokens = num_hit;
  row.tokens = {static_cast<int32_t>(out.token_ids.size()), r.prefill_len};
  row.adapter = r.adapter;
  row.params = r.params;
  if (!wants_whole_prompt(r)) {
    row.params.num_prompt_logprobs = -1;
    row.params.flags &= ~SamplingParams::kPromptHidden;
  }
  out.token_ids.insert(out.token_ids.end(), r.tokens.begin(), r.tokens.end());
  if (r.embeds != nullptr) {
    EmbeddingVectors& pool = out.embeddings;
    pool.width = r.embeds->width;
    row.embeds = {static_cast<int32_t>(pool.num_vectors()),
                  static_cast<int32_t>(r.embeds->num_vectors())};
    pool.values.insert(pool.values.end(), r.embeds->values.begin(), r.embeds->values.end());
  }
  if (r.params.min_tokens > 0) {
    row.stop_ids.begin = static_cast<int32_t>(out.stop_ids.size());
    row.stop_ids.count = static_cast<int32_t>(r.eos_token_ids.size() + r.stop_token_ids.size());
    out.stop_ids.insert(out.stop_ids.end(), r.eos_token_ids.begin(), r.eos_token_ids.end());
    out.stop_ids.insert(out.stop_ids.end(), r.stop_token_ids.begin(), r.stop_token_ids.end());
  }
  if (r.params.has_lists()) {
    row.token_lists = {static_cast<int32_t>(out.token_lists.size()),
                       static_cast<int32_t>(r.token_lists.size())};
    out.token_lists.insert(out.token_lists.end(), r.token_lists.begin(), r.token_lists.end());
  }
}

void Scheduler::commit_step(SchedulerOutput& out) {
  StepRecord& record = records_[static_cast<size_t>(next_step_ % config_.max_concurrent_steps)];
  record.num_sampling = 0;
  bool any_prefill = false;
  bool any_decode = false;
  bool any_partial = false;
  out.num_proposals = proposals_ = next_proposals_;
  for (ScheduledRow& s : out.scheduled) {
    const auto row_idx = static_cast<size_t>(index_of(s.row));
    LiveRequest& r = requests_[row_owner_[row_idx]];
    const bool is_prefill = s.num_computed_tokens < r.prefill_len;
    r.num_computed += s.num_tokens;
    out.total_num_tokens += s.num_tokens;
    out.results_through = std::max(out.results_through, r.sampled_step);
    const bool samples = r.num_computed == r.num_known() + r.most_pending + s.num_drafts;
    s.num_logits = samples ? 1 + s.num_drafts : 0;
    r.sampled_step = samples ? next_step_ : r.sampled_step;
    r.least_pending += samples ? 1 : 0;
    r.most_pending += s.num_logits;
    record.num_sampling += samples ? 1 : 0;
    if (samples && r.grammar >= 0) {
      out.grammar_rows.push_back(s.row);
    }
    // The host needs the drafts for the grammar masks after them, and to count how many are right.
    s.wants_drafts = samples && config_.num_drafts > 0 && r.may_draft &&
                     (r.grammar >= 0 || config_.draft_cost > 0 || config_.draft_knee > 0) &&
                     next_proposals_ != 0;
    record.rows[row_idx] = {
        next_step_, row_owner_[row_idx], rows_.generation(s.row), r.arrival, s.num_logits};
    (is_prefill ? any_prefill : any_decode) = true;
    any_partial = any_partial || (is_prefill && !samples);
    // Only after planning: no request in this step may hit blocks that the step itself fills.
    kv_.return_loans(r.kv, next_step_);
    if (is_prefill && r.num_confirmed() >= r.kv.cache_at) {
      kv_.cache_full_blocks(r.kv, r.tokens, r.num_confirmed());
    }
  }
  ++next_step_;
  ++num_in_flight_;
  ++stats_.num_steps;
  stats_.num_mixed_steps += any_prefill && any_decode ? 1 : 0;
  stats_.num_partial_prefill_steps += any_partial ? 1 : 0;
  stats_.num_scheduled_tokens += out.total_num_tokens;
  stats_.max_steps_in_flight = std::max(stats_.max_steps_in_flight, num_in_flight_);
}

// FCFS: the last admitted. Priority: the least urgent, and of equal priorities the latest arrival.
int32_t Scheduler::pick_victim() const {
  int32_t victim = running_.back();
  if (config_.policy == SchedulerConfig::Policy::kPriority) {
    for (int32_t i = running_.front(); i >= 0; i = requests_[i].next) {
      victim = comes_before(requests_[victim], requests_[i]) ? i : victim;
    }
  }
  return victim;
}

void Scheduler::preempt(int32_t index, SchedulerOutput& out) {
  const RowId row = requests_[index].row;
  unschedule(row, out);
  out.preempted_rows.push_back(row);
  leave_row(index);
}

// A running request waits again, with nothing computed.
void Scheduler::leave_row(int32_t index) {
  LiveRequest& r = requests_[index];
  kv_.release(r.kv, last_step());
  rows_.release(r.row);
  running_.erase(index);
  adapters_.add_running(r.adapter, -1);
  r.state = LiveRequest::State::kWaiting;
  r.row = kNoRow;
  r.num_computed = 0;
  r.held = false;
  enqueue(index);
  ++stats_.num_preemptions;
}

// Removes a row's tokens, blocks and pages from the step being planned.
void Scheduler::unschedule(RowId row, SchedulerOutput& out) {
  const auto planned = std::find_if(out.scheduled.begin(),
                                    out.scheduled.end(),
                                    [row](const ScheduledRow& s) { return s.row == row; });
  if (planned != out.scheduled.end()) {
    budget_ += planned->num_tokens;
    decode_budget_ += planned->num_computed_tokens >= owner(row).prefill_len ? 1 : 0;
    out.scheduled.erase(planned);
  }
  std::erase_if(out.block_appends, [row](const BlockAppend& append) { return append.row == row; });
  std::erase_if(out.page_appends, [row](const PageAppend& append) { return append.row == row; });
}

// The waiting list is sorted: new requests belong at its end, preempted ones near its front.
void Scheduler::enqueue(int32_t index) {
  const LiveRequest& r = requests_[index];
  int32_t before = waiting_.back();
  if (before >= 0 && comes_before(r, requests_[waiting_.front()])) {
    before = -1;
  }
  while (before >= 0 && comes_before(r, requests_[before])) {
    before = requests_[before].prev;
  }
  waiting_.insert_after(before, index);
}

void Scheduler::end(int32_t index) {
  LiveRequest& r = requests_[index];
  if (r.state == LiveRequest::State::kRunning) {
    kv_.release(r.kv, last_step());
    rows_.release(r.row);
    finished_rows_.push_back(r.row);
    running_.erase(index);
    adapters_.add_running(r.adapter, -1);
  } else {
    waiting_.erase(index);
  }
  adapters_.add_live(r.adapter, -1);
  requests_.remove(index);
}

void Scheduler::reserve(SchedulerOutput& out) const {
  const auto max_rows = static_cast<size_t>(config_.max_num_seqs);
  const auto num_blocks = static_cast<size_t>(kv_.pool().num_blocks());
  const auto num_groups = config_.kv.groups.size();
  size_t num_cells = 0;  // of states
  out.finished_rows.reserve(max_rows);
  out.preempted_rows.reserve(max_rows);
  out.new_rows.reserve(max_rows);
  out.block_appends.reserve(max_rows * num_groups);
  out.page_appends.reserve(max_rows);
  out.block_copies.reserve(max_rows);
  out.scheduled.reserve(max_rows);
  out.grammar_rows.reserve(max_rows);
  // Only rows that are admitted in one step and share cached blocks can need more.
  for (const KvGroupSpec& group : config_.kv.groups) {
    num_cells += max_rows * static_cast<size_t>(group.num_state_cells());
  }
  out.token_ids.reserve(num_blocks * static_cast<size_t>(config_.kv.groups.front().block_size));
  out.block_ids.reserve(num_blocks + num_cells);
  out.page_ids.reserve(static_cast<size_t>(kv_.pages().num_pages()));
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.num_running = running_.size();
  stats.num_waiting = waiting_.size();
  stats.num_kv_blocks = kv_.pool().num_blocks() - 1;
  stats.num_kv_blocks_used = stats.num_kv_blocks - kv_.pool().num_free() - kv_.pool().num_fenced();
  return stats;
}

std::vector<RequestStatus> Scheduler::list_requests() const {
  std::vector<RequestStatus> out;
  for (const int32_t head : {running_.front(), waiting_.front()}) {
    for (int32_t index = head; index != -1; index = requests_[index].next) {
      const LiveRequest& request = requests_[index];
      RequestStatus& status = out.emplace_back();
      status.id = request.id;
      status.running = request.state == LiveRequest::State::kRunning;
      status.preempted = !status.running && request.num_cached_tokens >= 0;
      status.row = request.row;
      status.num_prompt_toks = request.prompt_len;
      status.num_computed_toks = request.least_computed();
      status.num_output_toks = request.num_known() - request.prompt_len;
      status.max_output_toks = request.max_len - request.prompt_len;
      status.num_cached_toks = std::max(request.num_cached_tokens, 0);
      status.priority = request.priority;
      for (const RequestKv::Table& table : request.kv.tables) {
        status.num_blocks += static_cast<int32_t>(
            std::count_if(table.blocks.begin(), table.blocks.end(), [](BlockId block) {
              return block != kNullBlock;
            }));
      }
    }
  }
  return out;
}

}  // namespace warprow
