// SPDX-License-Identifier: Apache-2.0
#include "engine/output_batch.h"

#include "base/check.h"

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
  list.insert(list.end(), source.begin() + slice.begin, source.begin() + slice.begin + slice.count);
}

}  // namespace

void OutputBatch::clear() {
  deltas.clear();
  token_ids.clear();
  logprobs.clear();
  top_ids.clear();
  top_logprobs.clear();
}

void OutputBatch::reserve(size_t num_deltas) {
  deltas.reserve(num_deltas);
  token_ids.reserve(num_deltas);
}

void OutputBatch::add(OutputDelta delta, const ModelRunnerOutput& step, Span32 tokens) {
  delta.tokens = {length(token_ids), tokens.count};
  extend(token_ids, step.token_ids, tokens);
  if (step.has_logprobs && tokens.count > 0) {
    delta.logprobs_at = length(logprobs);
    WR_CHECK_EQ(step.logprobs.size(), step.token_ids.size());
    for (int32_t i = tokens.begin; i < tokens.begin + tokens.count; ++i) {
      TokenLogprobs entry = step.logprobs[static_cast<size_t>(i)];
      const Span32 top = entry.top;
      entry.top = {length(top_ids), top.count};
      extend(top_ids, step.top_ids, top);
      extend(top_logprobs, step.top_logprobs, top);
      logprobs.push_back(entry);
    }
  }
  deltas.push_back(delta);
}

void OutputBatch::append(OutputBatch& later) {
  const int32_t token_base = length(token_ids);
  const int32_t logprob_base = length(logprobs);
  const int32_t top_base = length(top_ids);
  for (OutputDelta delta : later.deltas) {
    delta.tokens.begin += token_base;
    delta.logprobs_at += delta.logprobs_at >= 0 ? logprob_base : 0;
    deltas.push_back(delta);
  }
  for (TokenLogprobs entry : later.logprobs) {
    entry.top.begin += top_base;
    logprobs.push_back(entry);
  }
  extend(token_ids, later.token_ids);
  extend(top_ids, later.top_ids);
  extend(top_logprobs, later.top_logprobs);
  later.clear();
}

}  // namespace warprow
