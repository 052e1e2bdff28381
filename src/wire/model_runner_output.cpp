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

}  // namespace warprow
