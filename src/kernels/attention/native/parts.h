// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <bit>
#include <cstdint>

namespace warprow::cuda {

// Batch-invariant attention adds up a query's keys in parts, which begin at fixed positions of the sequence. Inside a
// part tiles of kPartTile keys follow each other, and the parts are merged in order (order.cuh). Any CTA may compute any
// part: it may take one part of a row or all of them.
//
// A part is 256 keys long. From position 8192 on it is a sixteenth of the largest power of two up to its position, so
// that the parts stay few and each is a small share of a row.
constexpr int32_t kPartTile = 64;
constexpr int32_t kLeastPart = 4 * kPartTile;
constexpr int32_t kPartsPerDoubling = 16;

// A power of two.
WR_HD constexpr int32_t part_length(int32_t position) {
  int32_t length = kLeastPart;
  while (position / (2 * kPartsPerDoubling) >= length) {
    length *= 2;
  }
  return length;
}

// Where the part that holds a position ends.
WR_HD constexpr int32_t part_end(int32_t position) {
  return (position | (part_length(position) - 1)) + 1;
}

// Parts before the one that holds a position.
WR_HD constexpr int32_t part_index(int32_t position) {
  constexpr int32_t kFirstDoubling = 2 * kPartsPerDoubling * kLeastPart;
  const int32_t doublings = std::bit_width(static_cast<uint32_t>(position / kFirstDoubling));
  return doublings * kPartsPerDoubling + (position / kLeastPart >> doublings);
}

// The first position of a part.
WR_HD constexpr int32_t part_begin(int32_t index) {
  const int32_t doublings = index < 2 * kPartsPerDoubling ? 0 : index / kPartsPerDoubling - 1;
  return (index - doublings * kPartsPerDoubling) * (kLeastPart << doublings);
}

// The number of parts that hold keys from `begin` to `end` - 1.
WR_HD constexpr int32_t num_parts(int32_t begin, int32_t end) {
  return end <= begin ? 0 : part_index(end - 1) - part_index(begin) + 1;
}

// The `piece`-th of `pieces` runs of whole parts that together hold the keys from `begin` to `end` - 1; pieces <=
// num_parts(begin, end).
struct PartRun {
  int32_t part;        // parts of the keys before the run
  int32_t begin, end;  // its keys
};
WR_HD constexpr PartRun part_run(int32_t begin, int32_t end, int32_t pieces, int32_t piece) {
  const int32_t parts = num_parts(begin, end);
  const int32_t each = parts / pieces;
  const int32_t longer = parts - each * pieces;  // the first `longer` runs have one part more
  const int32_t first = piece * each + (piece < longer ? piece : longer);
  const int32_t next = first + each + (piece < longer ? 1 : 0);
  const int32_t before = part_index(begin);
  return {first,
          first == 0 ? begin : part_begin(before + first),
          next == parts ? end : part_begin(before + next)};
}

}  // namespace warprow::cuda
