// SPDX-License-Identifier: Apache-2.0
#include "models/decoder_spec.h"

#include <cmath>

namespace warprow {

float DecoderSpec::attention_scale() const {
  return 1.0F / std::sqrt(static_cast<float>(head_dim));
}

}  // namespace warprow
