// SPDX-License-Identifier: Apache-2.0
#include "runner/logits_head.h"

#include "base/check.h"
#include "kernels/gather/gather_rows.h"

#include <algorithm>

namespace warprow {

int32_t LogitsHead::max_rows(int64_t vocab, const StepLimits& limits) {
  const int64_t least = kLeastBytes / (vocab * static_cast<int64_t>(sizeof(float)));
  return std::max(limits.max_logits(),
                  static_cast<int32_t>(std::min<int64_t>(least, limits.max_num_toks)));
}

LogitsHead::LogitsHead(Decoder& model, Arena& workspace, const StepLimits& limits)
    : model_(model),
      max_rows_(max_rows(model.spec().vocab_size, limits)),
      logits_(workspace.alloc<float>(static_cast<int64_t>(max_rows_) * model.spec().vocab_size)) {
  const int64_t width = model.spec().hidden_size;
  const int64_t rows = limits.max_logits();
  const size_t bytes = static_cast<size_t>(rows * width) * dtype_bytes(model.act_dtype());
  picked_ = ActView(model.act_dtype(), workspace.alloc_bytes(bytes), rows, width);
}

View<float, 2> LogitsHead::last(int32_t n) const {
  return make_view(logits_, n, model_.spec().vocab_size);
}

View<float, 2> LogitsHead::of_picked(Stream& stream,
                                     const ActView& hidden,
                                     View<const int32_t, 1> index) {
  ActView picked = picked_;
  picked.shape[0] = index.shape[0];
  gather_rows(stream, {hidden, index, picked});
  return of_all(stream, picked);
}

View<float, 2> LogitsHead::of_all(Stream& stream, const ActView& hidden) {
  WR_CHECK_LE(hidden.shape[0], max_rows_);
  const View<float, 2> logits = last(static_cast<int32_t>(hidden.shape[0]));
  model_.compute_logits(stream, hidden, logits);
  return logits;
}

}  // namespace warprow
