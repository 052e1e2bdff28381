// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "device/view.h"
#include "kernels/sample/draft_probs.h"
#include "kernels/sample/sample.h"
#include "runner/input_batch.h"
#include "runner/logits_head.h"
#include "runner/ops/publish_output.h"
#include "runner/rows.h"

#include <cstdint>

namespace warprow {

// Draws the tokens of a step from its logits. kernels/sample implements the rules and their order; parameters are
// read through each logit's row. With several ranks, each draws from its share of the logits, then every rank gets the
// results of all.
//
// Owns: nothing; its arrays lie in the workspace arena.
// Thread: the runner's.
class Sampler {
 public:
  static constexpr int32_t kMaxPromptTop = 20;  // tokens reported beside a prompt token

  struct Sizes {
    int32_t max_num_seqs = 0;
    int32_t max_logits = 0;  // of a step
    int32_t max_rows = 0;    // of a report, >= max_logits
    int32_t vocab_size = 0;
    int32_t max_top = kMaxLogprobIds;  // tokens reported beside a sampled one
  };
  Sampler(Device& device,
          Arena& workspace,
          const Sizes& sizes,
          LogprobsMode mode,
          const RankGroup& ranks);

  // logits: of all num_logits; rules: all that any row needs (SampleRules). Results of all ranks are in arrays() once
  // the stream has run it.
  void sample(Stream& stream,
              const LogitsShare& logits,
              const InputBuffers& inputs,
              const RequestRows& rows,
              uint32_t rules);
  [[nodiscard]] const SampledArrays& arrays() const { return arrays_; }

  // From now on random rows verify drafts by ratio. draft_at: as of SampleArgs, dev i32 [max_logits], by logit of the step.
  // drafts: by place, row * RequestRows' max_drafts + number.
  void verify_by_ratio(const int32_t* draft_at, const DraftProbs& drafts);
  // Whether drafts are to be drawn, by draw_drafts.
  [[nodiscard]] bool draws_drafts() const { return drafts_.probs != nullptr; }
  // Draws the `number`-th drafts of rows from a drafter's logits: dev f32 [n, width of the distributions], of the rows
  // idx_mapping [n]; -1: none.
  void draw_drafts(Stream& stream,
                   const View<const float, 2>& logits,
                   const int32_t* idx_mapping,
                   int32_t number,
                   const RequestRows& rows) const;

  // Draws nothing. Writes raw logprobs of `tokens` [n <= max_rows] in the logits of n tokens, each with the num_top <=
  // kMaxPromptTop most likely tokens, to the arrays of `to`, [n] and [n, kMaxPromptTop], in pinned memory.
  void report(Stream& stream,
              const LogitsShare& logits,
              View<const int32_t, 1> tokens,
              int32_t num_top,
              const SampledArrays& to) const;

 private:
  void gather(Stream& stream,
              const SampledArrays& arrays,
              int64_t n,
              int32_t max_top,
              bool with_logprobs) const;

  RankGroup ranks_;
  // Arrays of several ranks have room for equal shares.
  SampledArrays arrays_;  // dev [max_num_seqs], [max_logits]
  SampledArrays
      reported_;       // dev [max_rows]  of several ranks: those of report, before they are copied
  int64_t most_rows_;  // this rank's share of max_rows, at most
  int32_t* errors_;    // dev i32 [most_rows_]
  View<std::byte, 1> scratch_;
  const int32_t* draft_at_ = nullptr;
  DraftProbs drafts_;
  int32_t max_top_;
  LogprobsMode mode_;
};

}  // namespace warprow
