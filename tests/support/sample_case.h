// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/rules/gumbel.h"
#include "kernels/sample/rules/min_p.h"
#include "kernels/sample/rules/penalties.h"
#include "kernels/sample/rules/temperature.h"
#include "kernels/sample/sample.h"
#include "tests/support/op_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

namespace warprow::testing {

// A row of the sampler and the data of its request.
struct SampleRow {
  std::vector<float> logits{};
  SampleParams params{};
  std::vector<int32_t> tokens = {0};  // prompt and output
  int32_t prompt_len = 1;
  int32_t prefill_len = 1;  // >= prompt_len
  std::set<int32_t> allowed{};
  std::map<int32_t, float> biases{};
  std::vector<std::vector<int32_t>> bad_words{};
  std::vector<int32_t> logprob_ids{};
  std::vector<int32_t> stop_ids{};  // suppressed until min_tokens
  bool active = true;               // false: the step's row is padding and yields no token

  [[nodiscard]] bool has_lists() const {
    return !allowed.empty() || !biases.empty() || !bad_words.empty();
  }
};

// The bits of SampleRules for parameters, as sample_rules_of (runner/rows.cpp) sets them.
inline uint32_t rules_of(const SampleParams& p) {
  const bool random = !is_greedy(p.temperature);
  uint32_t rules = random ? kSampleRandom : 0U;
  rules |= random && (p.top_k > 0 || p.top_p < 1.0F || p.min_p > 0.0F) ? kSampleCut : 0U;
  rules |= p.num_logprobs >= 0 ? kSampleLogprobs : 0U;
  rules |= uses_penalties(p) || p.min_tokens > 0 ? kSamplePenalties : 0U;
  return rules;
}

// The sampler's result for the row.
struct SampleOutcome {
  int32_t token = 0;
  int32_t error = 0;
  float logprob = 0.0F;
  int32_t rank = 0;
  std::vector<std::pair<int32_t, float>> top{};
  bool operator==(const SampleOutcome&) const = default;
};

// Runs rows through a backend's sampler and returns the outcomes.
using RunSample =
    std::function<std::vector<SampleOutcome>(const std::vector<SampleRow>&, LogprobsMode)>;

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Logits after the token rules, applied in order and as defined.
inline std::vector<float> under_token_rules(const SampleRow& row) {
  const std::vector<int32_t> outputs(row.tokens.begin() + row.prompt_len, row.tokens.end());
  const SampleParams& p = row.params;
  std::vector<float> x = row.logits;
  for (int32_t id = 0; id < static_cast<int32_t>(x.size()); ++id) {
    float& l = x[static_cast<size_t>(id)];
    bool masked = !row.allowed.empty() && row.allowed.count(id) == 0;
    for (const auto& word : row.bad_words) {
      auto text = outputs;
      text.push_back(id);
      masked |= text.size() >= word.size() && std::equal(word.rbegin(), word.rend(), text.rbegin());
    }
    masked |= static_cast<int32_t>(outputs.size()) < p.min_tokens &&
              std::count(row.stop_ids.begin(), row.stop_ids.end(), id) > 0;
    l = masked ? kMinusInf : l + (row.biases.count(id) > 0 ? row.biases.at(id) : 0.0F);
    const auto count = static_cast<float>(std::count(outputs.begin(), outputs.end(), id));
    if (std::count(row.tokens.begin(), row.tokens.end(), id) > 0) {
      l = l > 0 ? l / p.repetition_penalty : l * p.repetition_penalty;
    }
    l -= p.frequency_penalty * count;
    l -= count > 0 ? p.presence_penalty : 0.0F;
  }
  return x;
}

// Divides by the temperature and sets to -inf the tokens that min_p, top_k and top_p remove, in this order. Greedy rows
// are not changed.
inline std::vector<float> survivors_of(std::vector<float> x, const SampleParams& p) {
  if (is_greedy(p.temperature)) {
    return x;
  }
  for (float& v : x) {
    v /= effective_temperature(p.temperature);
  }
  const float max = *std::max_element(x.begin(), x.end());
  std::vector<size_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::erase_if(ids, [&](size_t i) {
    return x[i] == kMinusInf || (p.min_p > 0.0F && x[i] < min_p_threshold(max, p.min_p));
  });
  std::sort(ids.begin(), ids.end(), [&](size_t a, size_t b) {
    return x[a] > x[b] || (x[a] == x[b] && a < b);
  });
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < ids.size()) {
    ids.resize(static_cast<size_t>(p.top_k));
  }
  const auto weight = [&](size_t i) { return std::exp(static_cast<double>(x[i]) - max); };
  double total = 0.0;
  for (const size_t i : ids) {
    total += weight(i);
  }
  size_t kept = 0;
  for (double mass = 0.0; kept < ids.size() && (kept == 0 || mass < p.top_p * total); ++kept) {
    mass += weight(ids[kept]);
  }
  ids.resize(p.top_p < 1.0F ? kept : ids.size());
  std::vector<float> left(x.size(), kMinusInf);
  for (const size_t i : ids) {
    left[i] = x[i];
  }
  return left;
}

inline int32_t first_of_largest(const std::vector<float>& x) {
  return static_cast<int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

inline int32_t draw_from(const std::vector<float>& left, const SampleRow& row) {
  if (is_greedy(row.params.temperature)) {
    return first_of_largest(left);
  }
  const RandomKey key{
      row.params.seed, static_cast<uint32_t>(row.tokens.size() - 1), RandomPurpose::kSample};
  int32_t best = -1;
  double best_score = 0.0;
  for (int32_t id = 0; id < static_cast<int32_t>(left.size()); ++id) {
    const float x = left[static_cast<size_t>(id)];
    if (x != kMinusInf && (best < 0 || gumbel_score(x, key, id) > best_score)) {
      best = id;
      best_score = gumbel_score(x, key, id);
    }
  }
  return best;
}

// Adds the logprobs of `token` and of the requested or top tokens. x holds the logits that the mode reports on.
inline void add_logprobs(const SampleRow& row,
                         const std::vector<float>& x,
                         bool logits,
                         SampleOutcome& out) {
  const float max = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (const float v : x) {
    sum += std::exp(static_cast<double>(v) - max);
  }
  const double lse = logits ? 0.0 : max + std::log(sum);
  const auto told = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(x[static_cast<size_t>(id)]) - lse);
  };
  out.logprob = told(out.token);
  out.rank = static_cast<int32_t>(std::count_if(
      x.begin(), x.end(), [&](float v) { return v >= x[static_cast<size_t>(out.token)]; }));
  std::vector<int32_t> ids = row.logprob_ids;
  if (ids.empty()) {
    ids.resize(x.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      const float va = x[static_cast<size_t>(a)];
      const float vb = x[static_cast<size_t>(b)];
      return va > vb || (va == vb && a < b);
    });
    ids.resize(std::min(ids.size(), static_cast<size_t>(row.params.num_logprobs)));
  }
  for (const int32_t id : ids) {
    out.top.emplace_back(id, told(id));
  }
}

// The whole pipeline, for rows whose logits are not NaN and have a finite maximum.
inline SampleOutcome reference_outcome(const SampleRow& row, LogprobsMode mode) {
  const std::vector<float> ruled = under_token_rules(row);
  SampleOutcome out;
  if (*std::max_element(ruled.begin(), ruled.end()) == kMinusInf) {
    out.error = static_cast<int32_t>(SampleError::kNothingLeft);
    out.token = -out.error;
    return out;
  }
  const std::vector<float> left = survivors_of(ruled, row.params);
  out.token = draw_from(left, row);
  if (row.params.num_logprobs >= 0) {
    add_logprobs(row, is_processed(mode) ? left : row.logits, is_logits(mode), out);
  }
  return out;
}

// The rules that at least one of the rows needs: SampleArgs::rules.
inline uint32_t rules_of(const std::vector<SampleRow>& rows) {
  uint32_t rules = 0;
  for (const SampleRow& row : rows) {
    rules |= rules_of(row.params);
    rules |= row.logprob_ids.empty() ? 0U : kSampleLogprobs;
    rules |= row.has_lists() ? kSampleTokenLists : 0U;
  }
  return rules;
}

// One call of the sampler for these rows. Each row has one page of tokens, with the row's number. Its prefill is in one
// array and its later tokens in another.
class SampleCase {
 public:
  static constexpr int64_t kMaxTop = 24;
  static constexpr int64_t kMaxStopIds = 8;  // the count, then the ids

  // pad: elements between rows of logits. Rows without logits: the caller sets SampleArgs::logits.
  explicit SampleCase(const std::vector<SampleRow>& rows, int64_t pad = 0)
      : num_rows_(static_cast<int64_t>(rows.size())),
        vocab_(static_cast<int64_t>(rows.front().logits.size())),
        stride_(vocab_ + pad) {
    size_t longest = 64;
    for (const SampleRow& row : rows) {
      longest = std::max(longest, row.tokens.size());
      has_stop_ids_ = has_stop_ids_ || row.params.min_tokens > 0;
      has_lists_ = has_lists_ || row.has_lists() || !row.logprob_ids.empty();
      lists_width_ = std::max(lists_width_, static_cast<int64_t>(packed_lists(row).size()));
    }
    page_shift_ = static_cast<int32_t>(std::bit_width(longest - 1));
    for (const SampleRow& row : rows) {
      add(row);
    }
  }
  [[nodiscard]] int64_t size() const { return num_rows_; }
  [[nodiscard]] int64_t vocab() const { return vocab_; }
  [[nodiscard]] const std::vector<float>& logits() const { return logits_; }

  // All inputs. The caller sets rules, outputs and scratch.
  [[nodiscard]] SampleArgs args(CaseMemory& memory, LogprobsMode mode) const {
    SampleArgs a;
    if (!logits_.empty()) {
      a.logits = make_strided<const float>(memory.put(logits_), num_rows_, vocab_, stride_);
    }
    a.logit_row = make_view<const int32_t>(memory.put(row_), num_rows_);
    a.logit_pos = make_view<const int32_t>(memory.put(position_), num_rows_);
    a.params = make_view<const SampleParams>(memory.put(params_), num_rows_);
    a.tokens = {{memory.put(page_), memory.put(prefill_), memory.put(later_), 1, page_shift_},
                memory.put(prompt_len_),
                memory.put(prefill_len_),
                1};
    a.stop_ids = has_stop_ids_ ? memory.put(stop_ids_) : nullptr;
    a.stop_ids_stride = kMaxStopIds;
    a.token_lists = has_lists_ ? memory.put(lists_) : nullptr;
    a.token_lists_stride = lists_width_;
    a.logprobs_mode = mode;
    return a;
  }

 private:
  // Appends the row, padded with values that must not be read.
  static void append(std::vector<int32_t>& to, std::vector<int32_t> row, int64_t width) {
    WR_CHECK_LE(row.size(), width);
    row.resize(static_cast<size_t>(width), -12345);
    to.insert(to.end(), row.begin(), row.end());
  }

  void add(const SampleRow& row) {
    const auto index = static_cast<int32_t>(row_.size());
    logits_.insert(logits_.end(), row.logits.begin(), row.logits.end());
    logits_.resize(static_cast<size_t>(stride_) * (row_.size() + 1), 1e30F);
    page_.push_back(index);
    row_.push_back(row.active ? index : -1);
    position_.push_back(row.active ? static_cast<int32_t>(row.tokens.size()) - 1 : -1);
    const auto prefill = row.tokens.begin() + row.prefill_len;
    const int64_t page_len = int64_t{1} << page_shift_;
    append(prefill_, {row.tokens.begin(), prefill}, page_len);
    std::vector<int32_t> later(static_cast<size_t>(row.prefill_len), -54321);
    later.insert(later.end(), prefill, row.tokens.end());
    append(later_, later, page_len);
    prompt_len_.push_back(row.prompt_len);
    prefill_len_.push_back(row.prefill_len);
    std::vector<int32_t> stops = row.stop_ids;
    stops.insert(stops.begin(), static_cast<int32_t>(row.stop_ids.size()));
    append(stop_ids_, stops, kMaxStopIds);
    append(lists_, packed_lists(row), lists_width_);
    SampleParams p = row.params;
    p.flags = row.has_lists() ? kFlagTokenLists : 0;
    if (!row.logprob_ids.empty()) {
      p.flags |= kFlagLogprobIds;
      p.num_logprobs = static_cast<int32_t>(row.logprob_ids.size());
    }
    params_.push_back(p);
  }

  static std::vector<int32_t> packed_lists(const SampleRow& row) {
    std::vector<int32_t> bad;
    for (const auto& word : row.bad_words) {
      bad.push_back(static_cast<int32_t>(word.size()));
      bad.insert(bad.end(), word.begin(), word.end());
    }
    const auto count = [](const auto& list) { return static_cast<int32_t>(list.size()); };
    std::vector<int32_t> words = {
        count(row.allowed), count(row.biases), count(bad), count(row.logprob_ids)};
    words.insert(words.end(), row.allowed.begin(), row.allowed.end());
    for (const auto& [id, bias] : row.biases) {
      words.insert(words.end(), {id, std::bit_cast<int32_t>(bias)});
    }
    words.insert(words.end(), bad.begin(), bad.end());
    words.insert(words.end(), row.logprob_ids.begin(), row.logprob_ids.end());
    return words;
  }

  int64_t num_rows_;
  int64_t vocab_;
  int64_t stride_;
  int64_t lists_width_ = 0;
  int32_t page_shift_ = 0;
  bool has_stop_ids_ = false;
  bool has_lists_ = false;
  std::vector<float> logits_{};
  std::vector<SampleParams> params_{};
  std::vector<int32_t> row_{}, position_{}, page_{}, prefill_{}, later_{};
  std::vector<int32_t> prompt_len_{}, prefill_len_{}, stop_ids_{}, lists_{};
};

// Reads a backend's outputs: read(pointer, n) returns a vector.
template <typename Read>
std::vector<SampleOutcome> outcomes(const SampleArgs& a, const Read& read) {
  const int64_t n = a.logits.shape[0];
  const int64_t columns = a.top_ids.shape[1];
  const auto token = read(a.sampled.data, n);
  const auto error = read(a.error.data, n);
  const auto rank = read(a.rank.data, n);
  const auto logprob = read(a.logprob.data, n);
  const auto ids = read(a.top_ids.data, n * columns);
  const auto top = read(a.top_logprobs.data, n * columns);
  std::vector<SampleOutcome> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = {token[i], error[i], logprob[i], rank[i], {}};
    for (size_t c = i * static_cast<size_t>(columns);
         c < (i + 1) * static_cast<size_t>(columns) && ids[c] >= 0;
         ++c) {
      out[i].top.emplace_back(ids[c], top[c]);
    }
  }
  return out;
}

}  // namespace warprow::testing
