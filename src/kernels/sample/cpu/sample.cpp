// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/sample.h"

#include "device/cpu/cpu_stream.h"
#include "kernels/sample/cpu/draw.h"
#include "kernels/sample/cpu/logprobs.h"
#include "kernels/sample/cpu/top_k_top_p.h"
#include "kernels/sample/cpu/verify_draft.h"
#include "kernels/sample/rules/allowed_ids.h"
#include "kernels/sample/rules/bad_words.h"
#include "kernels/sample/rules/logit_bias.h"
#include "kernels/sample/rules/min_tokens.h"
#include "kernels/sample/rules/penalties.h"
#include "kernels/sample/rules/temperature.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace warprow::cpu {
namespace {

struct Sample {
  SampleArgs args;
  SampleLoops loops;

  // Terminates row i's columns; `at` is the first unused one.
  void end_columns(int64_t i, int32_t at) const {
    if (at < args.top_ids.shape[1]) {
      args.top_ids(i, at) = -1;
      args.top_logprobs(i, at) = -std::numeric_limits<float>::infinity();
    }
  }

  void clear_outputs(int64_t i) const {
    args.sampled(i) = -1;
    args.logprob(i) = 0.0F;
    args.rank(i) = 0;
    args.error(i) = static_cast<int32_t>(SampleError::kNone);
    end_columns(i, 0);
  }

  // The row's lists. Precondition: the row has lists.
  [[nodiscard]] TokenListsView lists_of(int32_t source) const {
    return token_lists_at(args.token_lists + source * args.token_lists_stride);
  }

  [[nodiscard]] double level_of(const TokenRow& row) const {
    return is_logits(args.logprobs_mode) ? 0.0 : log_sum_exp(row);
  }

  // Writes the columns: the ids that the row names, or the most likely tokens.
  void write_columns(int64_t i, const TokenRow& row, double lse) const {
    const auto columns = static_cast<int32_t>(args.top_ids.shape[1]);
    int32_t* const ids = args.top_ids.row(i);
    float* const logprobs = args.top_logprobs.row(i);
    const int32_t source = args.given.empty() ? args.logit_row(i) : -1;
    int32_t k = source < 0 ? args.num_given_top : args.params(source).num_logprobs;
    if (source >= 0 && has_logprob_ids(args.params(source))) {
      const TokenListsView lists = lists_of(source);
      k = std::min(lists.num_logprob_ids, columns);
      logprobs_of(row, lse, lists.logprob_ids, k, ids, logprobs);
    } else {
      k = std::min(k, columns);
      top_logprobs(row, lse, k, ids, logprobs);
    }
    end_columns(i, k);
  }

  void write_token(int64_t i, const TokenRow& row, double lse, int32_t token) const {
    args.logprob(i) = static_cast<float>(static_cast<double>(row.x[token]) - lse);
    args.rank(i) = token_rank(row, token);
  }

  // Points `row` to a copy of its logits with the rules on tokens applied, if any of them applies.
  SampleError apply_token_rules(int64_t i,
                                TokenRow& row,
                                int32_t& argmax,
                                const WorkerScratch& scratch) const {
    const int32_t source = args.logit_row(i);
    const SampleParams& params = args.params(source);
    const KnownTokens tokens = known_tokens(args.tokens, source, args.logit_pos(i));
    const bool too_short = tokens.num_outputs() < params.min_tokens;
    if (!too_short && !uses_penalties(params) && !has_token_lists(params)) {
      return SampleError::kNone;
    }
    const TokenListsView lists = has_token_lists(params) ? lists_of(source) : TokenListsView();
    copy_allowed(lists, row.x, scratch.changed, row.n);
    mask_bad_words(lists, tokens, scratch.changed, row.n);
    if (too_short) {
      mask_stop_ids(args.stop_ids + source * args.stop_ids_stride, scratch.changed, row.n);
    }
    add_logit_biases(lists, scratch.changed, row.n);
    if (uses_penalties(params)) {
      apply_penalties(tokens, params, scratch.changed, row.n, scratch.counts);
    }
    const RowFacts facts = loops.scan_row(scratch.changed, row.n, scratch.group_max);
    row.x = scratch.changed;
    row.max = facts.max;
    argmax = facts.argmax;
    return error_of(facts);
  }

  // The error of logits after the rules on tokens.
  static SampleError error_of(const RowFacts& facts) {
    if (!facts.has_nan && std::isfinite(facts.max)) {
      return SampleError::kNone;
    }
    const bool nothing = !facts.has_nan && facts.max < 0.0F;
    return nothing ? SampleError::kNothingLeft : SampleError::kBadLogits;
  }

  void fail(int64_t i, SampleError error) const {
    clear_outputs(i);
    args.error(i) = static_cast<int32_t>(error);
    args.sampled(i) = -static_cast<int32_t>(error);
  }

  void run_row(int64_t i, const WorkerScratch& scratch) const {
    clear_outputs(i);
    const int32_t source = args.given.empty() ? args.logit_row(i) : 0;
    if (source < 0) {
      return;
    }
    const float* logits = args.logits.row(i);
    const auto vocab = static_cast<int32_t>(args.logits.shape[1]);
    const RowFacts facts = loops.scan_row(logits, vocab, scratch.group_max);
    if (facts.has_nan || !std::isfinite(facts.max)) {
      fail(i, SampleError::kBadLogits);
      return;
    }
    const TokenRow row = row_of(logits, vocab, facts, loops, scratch);
    if (args.given.empty()) {
      draw_row(i, row, facts.argmax, scratch);
    } else {
      args.sampled(i) = args.given(i);
      const double lse = level_of(row);
      write_columns(i, row, lse);
      write_token(i, row, lse, args.given(i));
    }
  }

  void draw_row(int64_t i, TokenRow row, int32_t argmax, const WorkerScratch& scratch) const {
    const SampleParams& params = args.params(args.logit_row(i));
    const TokenRow raw = row;
    const bool wants_logprobs = params.num_logprobs >= 0;
    const bool wants_raw = wants_logprobs && !is_processed(args.logprobs_mode);
    double lse = 0.0;
    if (wants_raw) {
      lse = level_of(raw);
      write_columns(i, raw, lse);
    }
    int32_t token = argmax;
    const bool has_token_rules =
        uses_penalties(params) || params.min_tokens > 0 || has_token_lists(params);
    if (has_token_rules && !args.tokens.empty()) {
      const SampleError error = apply_token_rules(i, row, token, scratch);
      if (error != SampleError::kNone) {
        fail(i, error);
        return;
      }
    }
    const int32_t likeliest = token;
    Cut cut{std::numeric_limits<float>::lowest(), std::numeric_limits<int32_t>::max()};
    if (!is_greedy(params.temperature)) {
      apply_temperature(row, params.temperature, scratch);
      const Survivors left = cut_row(row, params);
      cut = left.cut;
      token = draw_or_verify(i, row, left, likeliest, scratch);
    }
    args.sampled(i) = token;
    if (wants_raw) {
      write_token(i, raw, lse, token);
    } else if (wants_logprobs) {
      const TokenRow left =
          row_of_survivors(row, cut, likeliest, scratch.values, scratch.group_max);
      lse = level_of(left);
      write_columns(i, left, lse);
      write_token(i, left, lse, token);
    }
  }

  // The token of a random row: the draft behind the logit, another one in its place, or an ordinary draw.
  [[nodiscard]] int32_t draw_or_verify(int64_t i,
                                       const TokenRow& row,
                                       const Survivors& left,
                                       int32_t likeliest,
                                       const WorkerScratch& scratch) const {
    const uint64_t seed = args.params(args.logit_row(i)).seed;
    const auto position = static_cast<uint32_t>(args.logit_pos(i));
    const int32_t place = args.draft_at.empty() ? -1 : args.draft_at(i);
    const int32_t draft = place < 0 ? -1 : args.drafts.tokens[place];
    if (draft < 0 || draft >= row.n) {
      return draw_survivor(row, left, likeliest, {seed, position, args.purpose});
    }
    const double total = masses_of(row, left.cut, likeliest, scratch.values);
    return verify_draft({args.drafts, place, scratch.values, row.n, total, seed, position});
  }

  void operator()(ComputePool& pool) const {
    pool.parallel_for(args.logits.shape[0], 1, [&](int64_t begin, int64_t end, int32_t worker) {
      const WorkerScratch scratch = worker_scratch(args.scratch.data, args.logits.shape[1], worker);
      for (int64_t i = begin; i < end; ++i) {
        run_row(i, scratch);
      }
    });
  }
};

}  // namespace

void sample(Stream& stream, const SampleArgs& args) {
  const int64_t vocab = args.logits.shape[1];
  check_sample_shapes(args);
  WR_CHECK(args.maxima.empty(), "maxima on a CPU");
  WR_CHECK_GE(
      args.scratch.shape[0],
      static_cast<int64_t>(sample_scratch_bytes(vocab, stream.device().facts().num_threads)));
  as_cpu(stream).launch("sample", Sample{args, pick_sample_loops()});
}

}  // namespace warprow::cpu
