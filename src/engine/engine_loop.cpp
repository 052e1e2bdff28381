// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_loop.h"

#include "base/check.h"
#include "base/log.h"
#include "engine/validate.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace warprow {
namespace {

SchedulerConfig scheduler_config(const EngineConfig& config, const Executor& executor) {
  const ModelFacts& facts = executor.model_facts();
  SchedulerConfig result;
  result.max_num_seqs = facts.max_num_seqs;
  result.max_num_batched_tokens = facts.max_num_batched_tokens;
  result.max_model_len = facts.max_model_len;
  result.enable_prefix_caching = config.enable_prefix_caching;
  result.enable_chunked_prefill = config.enable_chunked_prefill;
  result.prefill_toks_per_decode =
      facts.prefill_toks_per_decode < kNoPrefillLimit ? facts.prefill_toks_per_decode : 0;
  result.policy = config.scheduling_policy == "priority" ? SchedulerConfig::Policy::kPriority
                                                         : SchedulerConfig::Policy::kFcfs;
  result.long_prefill_token_threshold = facts.long_prefill_token_threshold;
  result.long_prompt_len = facts.long_prompt_len;
  result.max_prefill_pairs = facts.max_prefill_pairs;
  result.min_deep_chunk = facts.min_deep_chunk;
  result.num_drafts = facts.max_drafts;
  result.max_concurrent_steps = config.async_scheduling ? executor.max_concurrent_batches() : 1;
  result.kv = facts.kv;
  result.token_pages = facts.token_pages;
  return result;
}

Request to_request(Submission&& submission) {
  RequestFields& fields = submission.fields;
  Request request;
  request.id = submission.id;
  request.prompt = std::move(fields.prompt_token_ids);
  request.params = fields.params;
  request.max_tokens = fields.max_tokens;
  request.eos_token_ids = std::move(fields.eos_token_ids);
  request.stop_token_ids = std::move(fields.stop_token_ids);
  request.token_lists = std::move(fields.token_lists);
  request.priority = fields.priority;
  request.cache_salt = fields.cache_salt;
  return request;
}

// The client's error text for a grammar that ends its request; null: its text is complete.
const char* grammar_failure_text(GrammarProgress::State state) {
  switch (state) {
    case GrammarProgress::State::kFailed:
      return "structured_outputs: a step of the grammar exceeds the limits";
    case GrammarProgress::State::kStuck:
      return "structured_outputs: no token of the vocabulary goes on with the grammar";
    default:
      return nullptr;
  }
}

// The client's error text for a row without a token.
const char* failure_text(RowFailure failure) {
  switch (failure) {
    case RowFailure::kNone:
      break;
    case RowFailure::kBadLogits:
      return "no token can be drawn: the logits have a NaN or no finite maximum";
    case RowFailure::kNothingLeft:
      return "no token can be drawn: the request's rules (allowed_token_ids, bad_words, "
             "min_tokens, penalties, structured_outputs) leave none";
  }
  return "";
}

// A quarter of the cores: a CPU's forward needs them more than masks do.
int32_t num_mask_threads() {
  return std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

// Reserves capacity, so that taking an output never grows its lists.
void reserve_output(ModelRunnerOutput& output, size_t max_rows, size_t max_drafts) {
  const size_t max_tokens = max_rows * (1 + max_drafts);
  output.rows.reserve(max_rows);
  output.token_ids.reserve(max_tokens);
  output.draft_token_ids.reserve(max_rows * max_drafts);
  output.logprobs.reserve(max_tokens);
  output.top_ids.reserve(max_tokens * kMaxLogprobs);
  output.top_logprobs.reserve(max_tokens * kMaxLogprobs);
}

}  // namespace

EngineLoop::EngineLoop(const EngineConfig& config,
                       Executor& executor,
                       Inbox& inbox,
                       OutputQueue& outputs)
    : executor_(executor),
      inbox_(inbox),
      outputs_(outputs),
      scheduler_(scheduler_config(config, executor)),
      grammars_(executor.model_facts().vocab_size,
                num_mask_threads(),
                std::chrono::microseconds(config.grammar_mask_delay_us),
                executor.model_facts().max_drafts),
      sampling_(executor, scheduler_, grammars_) {
  const ModelFacts& facts = executor.model_facts();
  scheduler_.reserve(step_);
  reserve_output(
      output_, static_cast<size_t>(facts.max_num_seqs), static_cast<size_t>(facts.max_drafts));
  deltas_.reserve(static_cast<size_t>(facts.max_num_seqs));
  batch_.reserve(outputs_.max_deltas());
  row_starts_.resize(static_cast<size_t>(facts.max_num_seqs));
  stats_.block_size = facts.kv.groups.front().block_size;
  stats_.num_blocks = facts.kv.num_blocks;
  publish_stats();
}

void EngineLoop::run() noexcept {
  EngineEnd end{FinishReason::kAbort, ""};
  try {
    begin_waiting();
    while (tick()) {
    }
    if (sampling_.due()) {
      sampling_.give_up();
    }
    while (executor_.num_outstanding() > 0) {
      executor_.take_output(output_);
    }
  } catch (const CheckFailure& failure) {
    end = {FinishReason::kError, failure.message};
  } catch (const std::exception& exception) {
    end = {FinishReason::kError, exception.what()};
  }
  if (end.reason == FinishReason::kError) {
    WR_LOG_ERROR("the engine stops: {}", end.error);
  }
  executor_.set_wake_up(nullptr);
  progress_.stop(end.error);
  inbox_.close();  // before the end: the output thread then ends later submissions
  inbox_.take(commands_);
  commands_.clear();  // callers that wait for sleep or wake-up get an error now
  outputs_.end(std::move(end));
}

bool EngineLoop::tick() {
  const bool idle = !sleep_.awake() || (!sampling_.due() && !scheduler_.has_work() &&
                                        executor_.num_outstanding() == 0);
  if (idle) {
    progress_.enter(sleep_.awake() ? EnginePhase::kIdle : EnginePhase::kAsleep);
  }
  inbox_.take(commands_);
  if (idle) {
    rest();
  }
  if (commands_.closed) {
    return false;
  }
  apply_commands();
  if (sampling_.due()) {
    advance_sampling();
    return true;
  }
  if (!sleep_.awake() || submit_step()) {
    return true;
  }
  if (executor_.num_outstanding() > 0) {
    await_output();
  } else if (sampling_.any_held()) {
    sampling_.wait();
  } else {
    WR_CHECK(!scheduler_.has_work(), "requests wait, none can run and nothing is in flight");
  }
  return true;
}

// On the engine's thread.
void EngineLoop::begin_waiting() {
  executor_.enter_thread();
  grammars_.share_wake_up(inbox_.wake_up());
  outputs_notify_ = executor_.set_wake_up(&inbox_.wake_up());
}

// Waits until there is a command.
void EngineLoop::rest() {
  while (commands_.empty()) {
    if (!run_empty_step()) {
      inbox_.wake_up().wait();
    }
    inbox_.take(commands_);
  }
}

// Only if the executor asks for one. It carries the number of the scheduler's last step.
bool EngineLoop::run_empty_step() {
  if (!sleep_.awake()) {
    return false;
  }
  const std::optional<DataParallelShape> shape = executor_.idle_step();
  if (!shape) {
    return false;
  }
  empty_step_.step = step_.step;
  empty_step_.data_parallel = *shape;
  progress_.enter(EnginePhase::kDevice);
  executor_.execute_model(empty_step_);
  executor_.sample_tokens(nullptr);
  executor_.take_output(output_);
  WR_CHECK(output_.rows.empty());
  progress_.enter(EnginePhase::kIdle);
  return true;
}

void EngineLoop::apply_commands() {
  if (commands_.empty()) {
    return;
  }
  progress_.enter(EnginePhase::kCommand);
  for (Submission& submission : commands_.submissions) {
    add(std::move(submission));
  }
  for (const RequestId id : commands_.aborts) {
    // Unknown: it has ended, and its final update is on its way.
    if (scheduler_.abort_request(id)) {
      grammars_.remove_request(id);
      end_aborted(id, FinishReason::kAbort, "");
    }
  }
  for (const RequestId id : commands_.stopped) {
    scheduler_.finish_request(id);
    grammars_.remove_request(id);
  }
  for (SleepCall& call : commands_.sleep_calls) {
    answer(call);
  }
  publish_stats();
  for (const Task& task : commands_.tasks) {
    task();
  }
  outputs_.publish(batch_);
}

void EngineLoop::add(Submission submission) {
  if (sleep_.weights_gone()) {
    end_aborted(submission.id, FinishReason::kError, kWeightsAreGone);
    return;
  }
  const std::optional<Grammar> grammar = std::move(submission.fields.grammar);
  Request request = to_request(std::move(submission));
  if (grammar) {
    request.grammar = grammars_.add(request.id, *grammar);
  }
  stats_.prompt_tokens += static_cast<int64_t>(request.prompt.size());
  const Result<void> added = scheduler_.add_request(request);
  WR_CHECK(added.has_value(), "validated by another engine? {}", added.error().message);
}

void EngineLoop::end_aborted(RequestId id, FinishReason reason, const char* error) {
  OutputDelta delta;
  delta.id = id;
  delta.reason = reason;
  delta.error = error;
  delta.at = EngineClock::now();
  batch_.deltas.push_back(delta);
}

void EngineLoop::answer(SleepCall& call) {
  try {
    call.answer.set_value(call.wake ? wake_up(call.tags) : sleep(call.level));
  } catch (const StartupError& error) {
    call.answer.set_value(fail(error.code(), error.what()));
  }
}

Result<std::vector<std::string>> EngineLoop::sleep(int level) {
  if (!sleep_.awake()) {
    return fail(ErrorCode::kInvalidArgument, "sleep: the engine sleeps already");
  }
  for (const RequestId id : scheduler_.abort_all()) {
    grammars_.remove_request(id);
    end_aborted(id, FinishReason::kAbort, "");
  }
  outputs_.publish(batch_);
  if (sampling_.due()) {
    sampling_.give_up();
    log_step();
  }
  // Take the steps in flight, and run one that reports released rows to the workers.
  while (submit_step() || executor_.num_outstanding() > 0) {
    if (executor_.num_outstanding() > 0) {
      take_step();
    }
  }
  std::vector<std::string> reports = executor_.call(SleepRanks{level}).get();
  scheduler_.reset_prefix_cache();
  sleep_.fall_asleep(level);
  return reports;
}

Result<std::vector<std::string>> EngineLoop::wake_up(const std::string& tags) {
  std::vector<std::string> reports = executor_.call(WakeRanks{tags}).get();
  sleep_.wake(tags);
  return reports;
}

Result<void> EngineLoop::reset_prefix_cache() {
  if (scheduler_.num_in_flight() > 0 || scheduler_.stats().num_running > 0) {
    return fail(ErrorCode::kInvalidArgument, "the prefix cache is in use: requests run");
  }
  scheduler_.reset_prefix_cache();
  return {};
}

// Ends requests whose grammar is complete, failed, or has no allowed token.
void EngineLoop::end_finished_grammars() {
  finished_grammars_.clear();
  grammars_.take_finished(finished_grammars_);
  for (const int32_t place : finished_grammars_) {
    OutputDelta delta;
    delta.id = grammars_.request_of(place);
    delta.reason = FinishReason::kStop;
    if (const char* error = grammar_failure_text(grammars_.state(place)); error != nullptr) {
      delta.reason = FinishReason::kError;
      delta.error = error;
      delta.error_is_clients = true;
    }
    delta.at = EngineClock::now();
    batch_.deltas.push_back(delta);
    scheduler_.finish_request(delta.id);
    grammars_.remove(place);
  }
  if (!finished_grammars_.empty()) {
    outputs_.publish(batch_);
  }
}

// Advances sampling as far as the step's masks are ready.
void EngineLoop::advance_sampling() {
  end_finished_grammars();
  progress_.enter(EnginePhase::kLaunching);
  switch (sampling_.attempt()) {
    case MaskedSampling::Attempt::kDone:
      log_step();
      break;
    case MaskedSampling::Attempt::kNeedsOutput:
      take_step();
      break;
    case MaskedSampling::Attempt::kWaited:
      break;
  }
}

bool EngineLoop::submit_step() {
  end_finished_grammars();
  sampling_.resume_held();
  planned_ = EngineClock::now();
  progress_.enter(EnginePhase::kScheduling);
  if (!scheduler_.schedule(step_)) {
    return false;
  }
  launched_ = EngineClock::now();
  for (const NewRow& row : step_.new_rows) {
    row_starts_[static_cast<size_t>(index_of(row.row))] = {row.generation, launched_};
  }
  stats_.steps += step_.total_num_tokens > 0 ? 1 : 0;  // not those that only release rows
  progress_.enter(EnginePhase::kLaunching);
  sampling_.start_newcomers(step_);
  executor_.execute_model(step_);
  if (step_.grammar_rows.empty()) {
    executor_.sample_tokens(nullptr);
    log_step();
  } else {
    sampling_.begin(step_);
    advance_sampling();
  }
  return true;
}

void EngineLoop::log_step() {
  StepTrace trace;
  trace.step = step_.step;
  trace.planned = planned_;
  trace.launched = launched_;
  trace.handed = EngineClock::now();
  if (!step_.grammar_rows.empty()) {
    trace.forwarded = sampling_.forward_done_at();
  }
  trace.num_rows = static_cast<int32_t>(step_.scheduled.size());
  trace.num_toks = step_.total_num_tokens;
  for (const ScheduledRow& row : step_.scheduled) {
    trace.num_prefill_toks += row.num_tokens > 1 + row.num_drafts ? row.num_tokens : 0;
  }
  const SchedulerStats scheduler = scheduler_.stats();
  trace.num_running = scheduler.num_running;
  trace.num_waiting = scheduler.num_waiting;
  steps_.begin(trace);
}

// Takes the oldest step's output if it is ready or the executor cannot notify. Otherwise waits for any wake-up, so
// that commands are applied first.
void EngineLoop::await_output() {
  if (!outputs_notify_ || executor_.output_ready()) {
    take_step();
    return;
  }
  progress_.enter(EnginePhase::kDevice);
  inbox_.wake_up().wait();
}

void EngineLoop::take_step() {
  const EngineClock::time_point awaited = EngineClock::now();
  progress_.enter(EnginePhase::kDevice);
  executor_.take_output(output_);
  progress_.enter(EnginePhase::kDelivering);
  progress_.count_step();
  const EngineClock::time_point done = EngineClock::now();
  steps_.end(awaited, done);
  scheduler_.update_from_output(output_, deltas_);
  forward_deltas(done);
  publish_stats();  // first: a client that sees its request end finds its steps counted
  outputs_.publish(batch_);
}

void EngineLoop::forward_deltas(EngineClock::time_point now) {
  for (const RequestDelta& delta : deltas_) {
    const RowStart& start = row_starts_[static_cast<size_t>(index_of(delta.row))];
    OutputDelta& out = batch_.deltas.emplace_back();
    out.id = delta.id;
    out.tokens = delta.tokens;
    out.prompt_logprobs = delta.prompt_logprobs;
    out.hidden = delta.hidden;
    out.reason = delta.reason;
    if (delta.failure != RowFailure::kNone) {
      out.error = failure_text(delta.failure);
      out.error_is_clients = delta.failure == RowFailure::kNothingLeft;
    }
    out.stop_token_id = delta.stop_token_id;
    out.num_cached_tokens = delta.num_cached_tokens;
    // A preempted request's row may have gone to another by now.
    out.started = start.generation == delta.generation ? start.at : now;
    out.at = now;
    batch_.copy_from(output_, out);
    stats_.output_tokens += delta.tokens.count;
    follow_grammar(delta);
  }
}

void EngineLoop::follow_grammar(const RequestDelta& delta) {
  if (delta.grammar < 0) {
    return;
  }
  if (delta.reason != FinishReason::kNone) {
    grammars_.remove(delta.grammar);
    return;
  }
  grammars_.accept(delta.grammar,
                   slice(output_.token_ids, delta.tokens),
                   slice(output_.draft_token_ids, delta.drafts));
}

void EngineLoop::publish_stats() {
  const SchedulerStats scheduler = scheduler_.stats();
  stats_.mixed_steps = scheduler.num_mixed_steps;
  stats_.partial_prefill_steps = scheduler.num_partial_prefill_steps;
  stats_.preemptions = scheduler.num_preemptions;
  stats_.prefix_hit_tokens = scheduler.num_prefix_hit_tokens;
  stats_.num_running = scheduler.num_running;
  stats_.num_waiting = scheduler.num_waiting;
  stats_.num_blocks_used = scheduler.num_kv_blocks_used;
  const ExecutorStats executor = executor_.stats();
  stats_.max_steps_in_flight = executor.max_steps_in_flight;
  stats_.step_allocations = executor.step_allocations;
  stats_.row_state_bytes = executor.row_state_bytes;
  stats_.graphs_full = executor.graphs_full;
  stats_.graphs_piecewise = executor.graphs_piecewise;
  stats_.graphs_eager = executor.graphs_eager;
  stats_.graph_captures = executor.graph_captures;
  stats_.graph_evictions = executor.graph_evictions;
  stats_.graph_bytes = executor.graph_bytes;
  stats_.padded_toks = executor.padded_toks;
  const GrammarProgress::Stats grammars = grammars_.stats();
  stats_.grammar_masks = grammars.num_masks;
  stats_.grammar_mask_us = grammars.busy_us;
  stats_.withheld_rows = sampling_.num_withheld();
  const std::scoped_lock lock(published_mutex_);
  published_ = stats_;
}

EngineStats EngineLoop::stats() const {
  const std::scoped_lock lock(published_mutex_);
  return published_;
}

}  // namespace warprow
