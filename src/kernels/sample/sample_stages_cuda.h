// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/sample.h"
#include "kernels/sample/sample_layout_cuda.h"

namespace warprow::cuda {

// The sampler's kernels in their order. Grids depend on shapes alone, and the set of kernels on args.rules,
// so that a captured step can be replayed.

// Makes the bit mask of the tokens in a row's prompt; with kSamplePenalties.
void launch_prompt_mask(Stream& stream, const SampleArgs& args, const SampleScratch& scratch);
// Reads every row once: maxima, sums, and the best draw of every tile.
void launch_scan(Stream& stream, const SampleArgs& args, const SampleScratch& scratch);
// Tests the best draws against cuts that depend on a whole row; draws again under min_p. With kSampleCut.
void launch_mass(Stream& stream, const SampleArgs& args, const SampleScratch& scratch);
// Combines the tiles, applies the cuts, draws, and writes all outputs.
void launch_finish(Stream& stream, const SampleArgs& args, const SampleScratch& scratch);
// Logprobs after all rules; with kSampleLogprobs in a processed mode.
void launch_processed(Stream& stream, const SampleArgs& args, const SampleScratch& scratch);

}  // namespace warprow::cuda
