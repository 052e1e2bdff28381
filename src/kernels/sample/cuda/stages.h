// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/sample/sample.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// How the CUDA sampler splits a row into tiles, and its arrays in scratch. No CUDA header here: a build
// without CUDA also plans memory with it.
//
// One CTA reads a tile of a row, one thread a group of a tile. Group t has the tokens first + part * 1024 + 4
// * t + {0, 1, 2, 3} of every part.
constexpr int32_t kTileThreads = 256;
constexpr int32_t kTileParts = 8;
constexpr int32_t kPartTokens = 4 * kTileThreads;
constexpr int32_t kGroupTokens = 4 * kTileParts;
constexpr int32_t kTileTokens = kTileParts * kPartTokens;
constexpr int64_t kMaxVocab = 48 * 1024 * 8;  // one bit each in a CTA's shared memory

WR_HD constexpr int32_t num_tiles(int64_t vocab) {
  return static_cast<int32_t>((vocab + kTileTokens - 1) / kTileTokens);
}

// The scan's results for a tile. "Raw" is before the rules on tokens, the other fields are after them.
struct alignas(16) TileResult {
  float raw_max;   // NaN if the tile has one
  float raw_sum;   // of e^(x - raw_max); rows with logprobs
  float max;       // NaN if the tile has one
  int32_t argmax;  // the lowest id of a maximum
  double score;    // the best gumbel_score and its token; rows with RowPlan::drawn
  int32_t drawn;
  float scaled_sum;  // of e^((x - max) / temperature); rows with top_p alone
};

// Number of tokens that are tested at a time for whether they survive a cut.
constexpr int32_t kTested = 4;

// Mass of a tile's tokens that precede each of the row's best-scored tokens; for rows whose cut is tested.
struct TileMasses {
  uint64_t before[kTested];
};

// The arrays of draw_drafts, one value for each row, beside those of sample.
struct DraftScratch {
  int32_t* positions;  // [rows], like the others
  int32_t* tokens;
  float* logprobs;
  int32_t* ranks;
  int32_t* errors;
};

struct SampleScratch {
  TileResult* tiles;      // [rows, num_tiles]
  TileMasses* masses;     // [rows, num_tiles]
  float* raw_group_max;   // [rows, num_tiles * kTileThreads]  rows with logprobs
  float* group_max;       // [rows, num_tiles * kTileThreads]  random rows with a cut
  uint32_t* prompt_mask;  // [rows, mask_words]  rows with a repetition penalty
  float* changed;         // [rows, changed_stride]  RowPlan::kept rows with changed logits
  DraftScratch drafts;
  int32_t num_tiles;
  int32_t mask_words;
  int64_t changed_stride;
};

// Places the arrays in scratch of cuda::sample_scratch_bytes(vocab, rows).
SampleScratch cut_sample_scratch(std::byte* scratch, int64_t vocab, int64_t rows);

// The sampler's kernels in their order. Grids depend on shapes alone, and the set of kernels on args.rules,
// so that a captured step can be replayed.

// Reads every row once: maxima, sums, and the best draw of every tile.
void launch_scan(Stream& stream, const SampleArgs& args, const SampleScratch& scratch);
// Tests the best draws against cuts that depend on a whole row; draws again under min_p. With kSampleCut.
void launch_mass(Stream& stream, const SampleArgs& args, const SampleScratch& scratch);
// Combines the tiles, applies the cuts, draws, and writes all outputs.
void launch_finish(Stream& stream, const SampleArgs& args, const SampleScratch& scratch);
// In place of all others: the largest of the maxima that the model's head has left.
void launch_maxima(Stream& stream, const SampleArgs& args);
// Logprobs after all rules; with kSampleLogprobs in a processed mode.
void launch_processed(Stream& stream, const SampleArgs& args, const SampleScratch& scratch);

}  // namespace warprow::cuda
