// SPDX-License-Identifier: Apache-2.0
#include "wire/scheduler_output.h"

namespace warprow {

void SchedulerOutput::clear() {
  step = 0;
  results_through = 0;
  finished_rows.clear();
  preempted_rows.clear();
  new_rows.clear();
  block_appends.clear();
  page_appends.clear();
  scheduled.clear();
  total_num_tokens = 0;
  token_ids.clear();
  block_ids.clear();
  page_ids.clear();
  stop_ids.clear();
  token_lists.clear();
  grammar_rows.clear();
  draft_token_ids.clear();
  num_proposals = -1;
  max_mixed_prefill = 0;
  embeddings.width = 0;
  embeddings.values.clear();
  encoder_inputs.clear();
  encoder_frees.clear();
  block_copies.clear();
  blocks_to_zero.clear();
  connector_metadata.clear();
  num_common_prefix_blocks = 0;
  data_parallel = {};
}

void GrammarOutput::clear() {
  masked_rows.clear();
  withheld_rows.clear();
  bitmask.clear();
}

}  // namespace warprow
