// SPDX-License-Identifier: Apache-2.0
#include "wire/model_runner_output.h"

namespace warprow {

void ModelRunnerOutput::clear() {
  step = 0;
  rows.clear();
  token_ids.clear();
  draft_token_ids.clear();
  has_logprobs = false;
  logprobs.clear();
  prompt_logprobs.clear();
  top_ids.clear();
  top_logprobs.clear();
  hidden_states.reset();
  pooled.reset();
  tensors.clear();
  connector_output.clear();
  stats = {};
}

void ModelRunnerOutput::reserve(size_t max_rows, size_t max_drafts, size_t max_top) {
  const size_t max_tokens = max_rows * (1 + max_drafts);
  rows.reserve(max_rows);
  token_ids.reserve(max_tokens);
  draft_token_ids.reserve(max_rows * max_drafts);
  logprobs.reserve(max_tokens);
  top_ids.reserve(max_tokens * max_top);
  top_logprobs.reserve(max_tokens * max_top);
}

}  // namespace warprow
