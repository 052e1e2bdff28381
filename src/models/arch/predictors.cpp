// SPDX-License-Identifier: Apache-2.0
#include "models/arch/predictors.h"

#include <fmt/format.h>

namespace warprow {

Result<void> leave_out_predictors(const ModelMetadata& metadata, DecoderSpec& spec) {
  auto more = metadata.number_or("", "nextn_predict_layers", 0);
  if (!more) {
    return tl::unexpected(more.error());
  }
  if (*more >= spec.num_layers) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format(
            "model config: nextn_predict_layers is {} of {} layers", *more, spec.num_layers));
  }
  spec.num_layers -= *more;
  spec.layers.resize(static_cast<size_t>(spec.num_layers));
  return {};
}

}  // namespace warprow
