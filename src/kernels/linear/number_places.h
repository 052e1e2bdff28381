// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"

#include <array>
#include <cstdint>

namespace warprow {

// The places of numbers in a table of 16 (PackedWeight::numbers). Of equal numbers the first one counts.
class NumberPlaces {
 public:
  // numbers: 16, or null: no number has a place.
  explicit NumberPlaces(const int8_t* numbers) {
    place_.fill(kNone);
    for (uint8_t i = 16; numbers != nullptr && i-- > 0;) {
      place_[static_cast<uint8_t>(numbers[i])] = i;
    }
  }
  // number: one of the table (checked).
  [[nodiscard]] uint8_t of(int8_t number) const {
    const uint8_t place = place_[static_cast<uint8_t>(number)];
    WR_CHECK(place != kNone, "{} is not in the table", number);
    return place;
  }

 private:
  static constexpr uint8_t kNone = 16;
  std::array<uint8_t, 256> place_{};
};

}  // namespace warprow
