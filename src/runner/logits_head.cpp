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

LogitsHead::LogitsHead(Model& model,
                       Arena& workspace,
                       const StepLimits& limits,
                       const RankGroup& ranks)
    : model_(model),
      ranks_(ranks),
      max_rows_(max_rows(model.facts().vocab_size, limits)),
      logits_(
          workspace.alloc<float>(ranks.place.largest_share(max_rows_) * model.facts().vocab_size)) {
  if (!ranks.alone()) {
    part_ = workspace.alloc<float>(int64_t{max_rows_} * model.facts().vocab.width);
  }
  const int64_t width = model.facts().hidden_size;
  const int64_t rows = limits.max_logits();
  const size_t bytes = static_cast<size_t>(rows * width) * dtype_bytes(model.facts().act_dtype);
  picked_ = ActView(model.facts().act_dtype, workspace.alloc_bytes(bytes), rows, width);
}

bool LogitsHead::leaves_maxima(int32_t n) const {
  return ranks_.alone() && model_.leaves_maxima(n);
}

LogitsShare LogitsHead::last(int32_t n, LogitsForm form) const {
  const int64_t vocab = model_.facts().vocab_size;
  if (form == LogitsForm::kAll) {
    return share_of(n, vocab);
  }
  auto* const maxima = reinterpret_cast<OutputMax*>(logits_);
  return {{}, 0, n, make_view(maxima, n, vocab / kMaxOutputs)};
}

LogitsShare LogitsHead::share_of(int32_t n, int64_t vocab) const {
  const Share mine = ranks_.place.share(n);
  return {make_view(logits_, mine.size(), vocab), mine.begin, n};
}

View<float, 2> LogitsHead::columns_of(int32_t n, int64_t width) const {
  return make_view(part_, int64_t{n}, width);
}

LogitsShare LogitsHead::of_picked(Stream& stream,
                                  const ActView& hidden,
                                  View<const int32_t, 1> index,
                                  LogitsForm form) {
  ActView picked = picked_;
  picked.shape[0] = index.shape[0];
  gather_rows(stream, {hidden, index, picked});
  if (form == LogitsForm::kAll) {
    return of_all(stream, picked);
  }
  const LogitsShare share = last(static_cast<int32_t>(index.shape[0]), form);
  model_.compute_maxima(stream, picked, share.maxima);
  return share;
}

LogitsShare LogitsHead::of_all(Stream& stream, const ActView& hidden) {
  const int64_t n = hidden.shape[0];
  WR_CHECK_LE(n, max_rows_);
  const LogitsShare logits = last(static_cast<int32_t>(n), LogitsForm::kAll);
  if (ranks_.alone()) {
    model_.compute_logits(stream, hidden, logits.rows);
    return logits;
  }
  const View<float, 2> part = make_view(part_, n, model_.facts().vocab.width);
  model_.compute_logits(stream, hidden, part);
  ranks_.comm->exchange_columns(stream, part, logits.rows);
  return logits;
}

}  // namespace warprow
