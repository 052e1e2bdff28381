// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/logits_rule.h"

#include "warprow.h"

namespace warprow {

// A rule that is a function of the caller's.
class LogitsCallback final : public LogitsRule {
 public:
  LogitsCallback(warprow_logits_rule rule, void* user, bool changes_argmax)
      : rule_(rule), user_(user), changes_argmax_(changes_argmax) {}

  [[nodiscard]] bool changes_argmax() const override { return changes_argmax_; }
  bool apply(const RowLogits& row) override {
    const warprow_row_logits view{row.tokens.data(),
                                  row.tokens.size(),
                                  static_cast<size_t>(row.prompt_len),
                                  row.logits.data(),
                                  row.logits.size()};
    return rule_(user_, &view) == 0;
  }

 private:
  warprow_logits_rule rule_;
  void* user_;
  bool changes_argmax_;
};

}  // namespace warprow
