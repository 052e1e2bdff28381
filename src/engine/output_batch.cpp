// SPDX-License-Identifier: Apache-2.0
#include "engine/output_batch.h"

#include "base/check.h"

#include <algorithm>

namespace warprow {
namespace {

template <typename T>
int32_t length(const std::vector<T>& list) {
  return static_cast<int32_t>(list.size());
}

template <typename T>
void extend(std::vector<T>& list, const std::vector<T>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

template <typename T>
void extend(std::vector<T>& list, const std::vector<T>& source, Span32 slice) {
  WR_CHECK_LE(slice.begin + slice.count, length(source));
  const auto first = source.begin() + slice.begin;
  if (slice.count == 1) {  // a step's token: nearly always
    list.push_back(*first);
  } else {
    list.insert(list.end(), first, first + slice.count);
  }
}

// Copies a slice of a step's vectors to the end of `to`, and returns the slice of the copy.
Span32 copy_vectors(RowTensors& to, const RowTensors& from, Span32 slice) {
  to.width = from.width;
  const Span32 copy{static_cast<int32_t>(to.num_vectors()), slice.count};
  extend(to.values, from.values, {slice.begin * from.width, slice.count * from.width});
  return copy;
}

void append_vectors(RowTensors& to, const RowTensors& later) {
  to.width = std::max(to.width, later.width);
  extend(to.values, later.values);
}

}  // namespace

void OutputBatch::clear() {
  deltas.clear();
  token_ids.clear();
  logprobs.clear();
  top_ids.clear();
  top_logprobs.clear();
  hidden_states.values.clear();
  pooled.values.clear();
}

void OutputBatch::reserve(size_t num_deltas) {
  deltas.reserve(num_deltas);
  token_ids.reserve(num_deltas);
}

void OutputBatch::add_logprobs(const ModelRunnerOutput& step,
                               const std::vector<TokenLogprobs>& list,
                               Span32 slice) {
  WR_CHECK_LE(slice.begin + slice.count, length(list));
  for (int32_t i = slice.begin; i < slice.begin + slice.count; ++i) {
    TokenLogprobs entry = list[static_cast<size_t>(i)];
    const Span32 top = entry.top;
    entry.top = {length(top_ids), top.count};
    extend(top_ids, step.top_ids, top);
    extend(top_logprobs, step.top_logprobs, top);
    logprobs.push_back(entry);
  }
}

void OutputBatch::copy_from(const ModelRunnerOutput& step, OutputDelta& delta) {
  const Span32 tokens = delta.tokens;
  delta.tokens.begin = length(token_ids);
  extend(token_ids, step.token_ids, tokens);
  if (step.has_logprobs && tokens.count > 0) {
    delta.logprobs_at = length(logprobs);
    WR_CHECK_EQ(step.logprobs.size(), step.token_ids.size());
    add_logprobs(step, step.logprobs, tokens);
  }
  if (delta.prompt_logprobs.count > 0) {
    const Span32 prompt = delta.prompt_logprobs;
    delta.prompt_logprobs.begin = length(logprobs);
    add_logprobs(step, step.prompt_logprobs, prompt);
  }
  if (delta.hidden.count > 0) {
    delta.hidden = copy_vectors(hidden_states, *step.hidden_states, delta.hidden);
  }
  if (delta.pooled.count > 0) {
    delta.pooled = copy_vectors(pooled, *step.pooled, delta.pooled);
  }
}

void OutputBatch::append(OutputBatch& later) {
  const int32_t token_base = length(token_ids);
  const int32_t logprob_base = length(logprobs);
  const int32_t top_base = length(top_ids);
  const auto hidden_base = static_cast<int32_t>(hidden_states.num_vectors());
  const auto pooled_base = static_cast<int32_t>(pooled.num_vectors());
  for (OutputDelta delta : later.deltas) {
    delta.tokens.begin += token_base;
    delta.logprobs_at += delta.logprobs_at >= 0 ? logprob_base : 0;
    delta.prompt_logprobs.begin += logprob_base;
    delta.hidden.begin += hidden_base;
    delta.pooled.begin += pooled_base;
    deltas.push_back(delta);
  }
  for (TokenLogprobs entry : later.logprobs) {
    entry.top.begin += top_base;
    logprobs.push_back(entry);
  }
  extend(token_ids, later.token_ids);
  extend(top_ids, later.top_ids);
  extend(top_logprobs, later.top_logprobs);
  append_vectors(hidden_states, later.hidden_states);
  append_vectors(pooled, later.pooled);
  later.clear();
}

}  // namespace warprow
