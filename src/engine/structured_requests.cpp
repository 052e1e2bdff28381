// SPDX-License-Identifier: Apache-2.0
#include "engine/structured_requests.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

namespace warprow {
namespace {

// A quarter of the cores: a CPU's forward needs them more than masks do.
int32_t num_mask_threads() {
  return std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

// The client's error text for a grammar that ends its request; null: its text is complete.
const char* grammar_failure_text(GrammarProgress::State state) {
  switch (state) {
    case GrammarProgress::State::kFailed:
      return "structured_outputs: a step of the grammar exceeds the limits";
    case GrammarProgress::State::kStuck:
      return "structured_outputs: no token of the vocabulary can continue the grammar";
    default:
      return nullptr;
  }
}

}  // namespace

StructuredRequests::StructuredRequests(const EngineConfig& config,
                                       Executor& executor,
                                       Scheduler& scheduler)
    : scheduler_(scheduler),
      grammars_(executor.model_facts().vocab_size,
                num_mask_threads(),
                std::chrono::microseconds(config.grammar_mask_delay_us),
                executor.model_facts().max_drafts),
      sampling_(executor, scheduler_, grammars_) {}

void StructuredRequests::add(Submission& submission) {
  if (const std::optional<Grammar> grammar = std::move(submission.grammar)) {
    submission.request.grammar = grammars_.add(submission.request.id, *grammar);
  }
}

void StructuredRequests::end_finished(Delivery& delivery) {
  finished_.clear();
  grammars_.take_finished(finished_);
  for (const int32_t place : finished_) {
    const RequestId id = grammars_.request_of(place);
    if (const char* error = grammar_failure_text(grammars_.state(place)); error != nullptr) {
      delivery.end(id, FinishReason::kError, error, /*error_is_clients=*/true);
    } else {
      delivery.end(id, FinishReason::kStop);
    }
    scheduler_.finish_request(id);
    grammars_.remove(place);
  }
  if (!finished_.empty()) {
    delivery.publish();
  }
}

void StructuredRequests::follow(std::span<const RequestDelta> deltas,
                                const ModelRunnerOutput& output) {
  for (const RequestDelta& delta : deltas) {
    if (delta.grammar < 0) {
      continue;
    }
    if (delta.reason != FinishReason::kNone) {
      grammars_.remove(delta.grammar);
      continue;
    }
    grammars_.accept(delta.grammar,
                     slice(output.token_ids, delta.tokens),
                     slice(output.draft_token_ids, delta.drafts));
  }
}

bool StructuredRequests::begin_sampling(const SchedulerOutput& step) {
  if (step.grammar_rows.empty()) {
    return false;
  }
  sampling_.begin(step);
  return true;
}

}  // namespace warprow
