// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow {

// How the inputs of a product with an e4m3 matrix are rounded to e4m3 numbers times a scale.
//  kNone: not at all.
//  kRow: a scale for each row, its largest magnitude over 448.
//  kGroup: a scale for each 128 inputs of a row, likewise. The matrix has one for each 128 inputs of a row too.
//  kStatic: one scale for all, which the checkpoint has.
enum class F8Inputs : uint8_t { kNone, kRow, kGroup, kStatic };

}  // namespace warprow
