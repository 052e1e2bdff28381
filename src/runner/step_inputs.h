// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/block_tables.h"
#include "runner/input_batch.h"
#include "runner/ops/prologue.h"
#include "runner/rows.h"
#include "runner/step_upload.h"

#include <cstdint>

namespace warprow {

// Writes the host's part of a step: rows, and where their tokens and logits begin. Also writes the tails of all
// max_num_seqs entries, unless the ring entry has them from a step with the same counts.
void write_layout(const InputBatch& batch, int32_t max_num_seqs, const StepUpload::Entry& entry);

// The launch that builds all other inputs on the device. In a step that runs whole from a graph it depends on
// padded counts only, so that one recording serves every step of its size.
Prologue make_prologue(const InputBatch& batch,
                       const InputBuffers& inputs,
                       const RequestRows& rows,
                       const BlockTables& tables);

}  // namespace warprow
