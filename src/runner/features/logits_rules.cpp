// SPDX-License-Identifier: Apache-2.0
#include "runner/features/logits_rules.h"

#include "device/cpu/cpu_stream.h"
#include "kernels/sample/sample.h"
#include "models/model.h"
#include "runner/rows.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace warprow {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Owns: room for one row's tokens and logits, which the stream's thread uses.
class LogitsRulesFeature final : public RunnerFeature {
 public:
  LogitsRulesFeature(const RunnerParts& parts, LogitsRules rules)
      : rules_(std::move(rules)),
        for_greedy_(std::ranges::any_of(rules_, &LogitsRule::changes_argmax)),
        rows_(*parts.rows),
        inputs_(*parts.inputs) {
    tokens_.reserve(static_cast<size_t>(parts.limits.max_model_len));
    masked_.reserve(static_cast<size_t>(parts.model->facts().vocab_size));
  }

  void vote(StepVote& vote) override {
    active_ = std::ranges::any_of(vote.rows, [this](const ScheduledRow& row) {
      return row.num_logits > 0 &&
             (for_greedy_ || (rows_.host(row.row).sample_rules & kSampleRandom) != 0);
    });
    vote.reads_logits |= active_;
  }

  [[nodiscard]] uint64_t graph_key(StepPart part) const override {
    return part == StepPart::kSample && active_ ? 1 : 0;
  }

  void before_sample(Stream& stream, const LogitsShare& logits) override {
    if (active_) {
      cpu::as_cpu(stream).launch("logits_rules", [this, logits](cpu::ComputePool& /*pool*/) {
        for (int64_t i = 0; i < logits.rows.shape[0]; ++i) {
          apply(logits.rows, i, logits.first + i);
        }
      });
    }
  }

 private:
  void apply(const View<float, 2>& logits, int64_t i, int64_t logit_idx) {
    const int32_t row = inputs_.logit_row[logit_idx];
    if (row < 0) {  // padding, or withheld
      return;
    }
    const bool random = rows_.params()[row].temperature > 0;
    if (!random && !for_greedy_) {
      return;
    }
    const TokenHistory history{rows_.store().tokens(),
                               &rows_.states()->prompt_len,
                               &rows_.states()->prefill_len,
                               sizeof(RowState) / sizeof(int32_t)};
    const KnownTokens known = known_tokens(history, row, inputs_.logit_pos[logit_idx]);
    tokens_.clear();
    known.for_each_from(0, [this](TokenId token) { tokens_.push_back(token); });
    const std::span<float> values(logits.row(i), static_cast<size_t>(logits.shape[1]));
    keep_masked(values);
    for (LogitsRule* rule : rules_) {
      if ((random || rule->changes_argmax()) &&
          !rule->apply({tokens_, std::min(known.prompt_len, known.len), values})) {
        std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
        return;
      }
    }
    for (const size_t token : masked_) {
      values[token] = kMasked;
    }
  }

  void keep_masked(std::span<const float> values) {
    masked_.clear();
    for (size_t token = 0; token < values.size(); ++token) {
      if (values[token] == kMasked) {
        masked_.push_back(token);
      }
    }
  }

  LogitsRules rules_;
  bool for_greedy_;
  const RequestRows& rows_;
  const InputBuffers& inputs_;
  bool active_ = false;  // in this step
  std::vector<TokenId> tokens_;
  std::vector<size_t> masked_;  // tokens that were -inf before the rules
};

}  // namespace

std::unique_ptr<RunnerFeature> make_logits_rules(const RunnerParts& parts,
                                                 const LogitsRules& rules) {
  return std::make_unique<LogitsRulesFeature>(parts, rules);
}

}  // namespace warprow
