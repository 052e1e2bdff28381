// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/sample.h"

#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/sample/cpu/logprobs.h"
#include "kernels/sample/cpu/top_k_top_p.h"
#include "kernels/sample/rules/allowed_ids.h"
#include "kernels/sample/rules/bad_words.h"
#include "kernels/sample/rules/gumbel.h"
#include "kernels/sample/rules/logit_bias.h"
#include "kernels/sample/rules/min_p.h"
#include "kernels/sample/rules/min_tokens.h"
#include "kernels/sample/rules/penalties.h"
#include "kernels/sample/rules/temperature.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace warprow {
namespace {

constexpr int64_t kAlign = 64;

// One worker's scratch: keys [V] u64, values [V], changed logits [V], group maxima and a copy of them. Token
// counts share memory with the keys: their last use is before the first key.
int64_t worker_bytes(int64_t vocab) {
  const int64_t groups = cpu::num_max_groups(static_cast<int32_t>(vocab));
  return round_up<int64_t>(vocab * 8, kAlign) + 2 * round_up<int64_t>(vocab * 4, kAlign) +
         2 * round_up<int64_t>(groups * 4, kAlign);
}

}  // namespace

size_t cpu::sample_scratch_bytes(int64_t vocab, int32_t num_workers) {
  return static_cast<size_t>(worker_bytes(vocab) * num_workers + kAlign);
}

namespace cpu {

double draw_score(const GumbelDraw& d, int32_t token) {
  return gumbel_score(
      d.x[token], {d.seed, d.position, static_cast<RandomPurpose>(d.purpose)}, token);
}

namespace {

struct WorkerScratch {
  TokenKey* keys;
  int32_t* counts;
  float* values;
  float* changed;
  float* group_max;
  float* group_copy;
};

WorkerScratch cut_scratch(std::byte* scratch, int64_t vocab, int32_t worker) {
  const auto address = round_up<uintptr_t>(reinterpret_cast<uintptr_t>(scratch), kAlign);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): rounding an address up
  auto* p = reinterpret_cast<std::byte*>(address) + worker_bytes(vocab) * worker;
  const auto take = [&p](int64_t bytes) {
    std::byte* at = p;
    p += round_up<int64_t>(bytes, kAlign);
    return at;
  };
  const int64_t groups = num_max_groups(static_cast<int32_t>(vocab));
  WorkerScratch s{};
  std::byte* const keys = take(vocab * 8);
  s.keys = reinterpret_cast<TokenKey*>(keys);
  s.counts = reinterpret_cast<int32_t*>(keys);
  s.values = reinterpret_cast<float*>(take(vocab * 4));
  s.changed = reinterpret_cast<float*>(take(vocab * 4));
  s.group_max = reinterpret_cast<float*>(take(groups * 4));
  s.group_copy = reinterpret_cast<float*>(take(groups * 4));
  return s;
}

// Divides the row by the temperature, and the group maxima too, since division keeps the order.
void apply_temperature(TokenRow& row, float temperature, const WorkerScratch& scratch) {
  const float divisor = effective_temperature(temperature);
  if (divisor == 1.0F) {
    return;
  }
  row.loops->divide_row(row.x, row.n, divisor, scratch.changed);
  for (int32_t g = 0; g < num_max_groups(row.n); ++g) {
    scratch.group_max[g] /= divisor;
  }
  row.x = scratch.changed;
  row.max /= divisor;
}

// The survivor with the largest score. Survivors are the tokens with keys up to `last`; row.keys[0, count)
// contains them if count is small.
int32_t draw_up_to(const TokenRow& row, const GumbelDraw& draw, int32_t count, TokenKey last) {
  if (count > kShortList) {
    return row.loops->draw_gumbel(draw);
  }
  int32_t best_id = draw.first;
  double best = draw_score(draw, draw.first);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = key_id(row.keys[i]);
    if (row.keys[i] > last) {
      continue;
    }
    const double score = draw_score(draw, id);
    if (score > best || (score == best && id < best_id)) {
      best = score;
      best_id = id;
    }
  }
  return best_id;
}

// Returns the token. Sets `cut` to the tokens that could have been drawn, besides argmax.
int32_t draw_token(
    const TokenRow& row, const SampleParams& params, int32_t argmax, int32_t position, Cut& cut) {
  float lower = std::numeric_limits<float>::lowest();  // -inf never survives
  if (params.min_p > 0.0F) {
    lower = std::max(lower, min_p_threshold(row.max, params.min_p));
  }
  GumbelDraw draw{};
  draw.x = row.x;
  draw.n = row.n;
  draw.first = argmax;
  cut = {lower, std::numeric_limits<int32_t>::max()};
  draw.seed = params.seed;
  draw.position = static_cast<uint32_t>(position);
  draw.purpose = static_cast<uint32_t>(RandomPurpose::kSample);
  const bool use_top_k = params.top_k > 0 && params.top_k < row.n;
  const bool use_top_p = params.top_p < 1.0F;
  if (use_top_k) {
    const int32_t count = select_top_k(row, params.top_k, lower);
    const TokenKey last = use_top_p ? last_of_top_p(row, count, params.top_p)
                                    : *std::max_element(row.keys, row.keys + count);
    draw.cut = cut = {key_value(last), key_id(last)};
    return draw_up_to(row, draw, count, last);
  }
  if (use_top_p) {
    const TopPSurvivors survivors = top_p_of_row(row, lower, params.top_p);
    draw.cut = cut = {key_value(survivors.last), key_id(survivors.last)};
    return draw_up_to(row, draw, survivors.count, survivors.last);
  }
  draw.cut = cut;
  return row.loops->draw_gumbel(draw);
}

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
    const TokenRow row{logits,
                       vocab,
                       facts.max,
                       scratch.group_max,
                       &loops,
                       scratch.keys,
                       scratch.values,
                       scratch.group_copy};
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
      token = draw_token(row, params, likeliest, args.logit_pos(i), cut);
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

  void operator()(ComputePool& pool) const {
    pool.parallel_for(args.logits.shape[0], 1, [&](int64_t begin, int64_t end, int32_t worker) {
      const WorkerScratch scratch = cut_scratch(args.scratch.data, args.logits.shape[1], worker);
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
  WR_CHECK_GE(
      args.scratch.shape[0],
      static_cast<int64_t>(cpu::sample_scratch_bytes(vocab, stream.device().facts().num_threads)));
  const SampleLoops loops{WR_ISA_PICK(scan_row),
                          WR_ISA_PICK(divide_row),
                          WR_ISA_PICK(exp_row),
                          WR_ISA_PICK(sum_exp),
                          WR_ISA_PICK(count_at_least),
                          WR_ISA_PICK(collect_at_least),
                          WR_ISA_PICK(draw_gumbel)};
  as_cpu(stream).launch("sample", Sample{args, loops});
}

}  // namespace cpu
}  // namespace warprow
