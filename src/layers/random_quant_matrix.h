// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/random/random_quant.h"
#include "weights/quant_matrix.h"

#include <cstdint>

namespace warprow {

// A quantised matrix [rows, cols] of random numbers (kernels/random/random_quant.h), in place of a checkpoint.
// Thread: any.
class RandomQuantMatrix final : public QuantMatrix {
 public:
  // form: number, group and inputs are read. deviation: of the weights.
  RandomQuantMatrix(
      const QuantForm& form, uint64_t seed, float deviation, int64_t rows, int64_t cols);

  [[nodiscard]] const RandomQuant& random() const { return random_; }
  void read(const QuantPart& part, QuantBuffers& out) const override;

 private:
  RandomQuant random_;
};

}  // namespace warprow
