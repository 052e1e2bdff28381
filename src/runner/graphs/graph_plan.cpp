// SPDX-License-Identifier: Apache-2.0
#include "runner/graphs/graph_plan.h"

#include "base/math.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int32_t kMaxDefaultSize = 512;

bool wants_pieces(GraphPolicy policy) {
  return policy == GraphPolicy::kPiecewise || policy == GraphPolicy::kFull ||
         policy == GraphPolicy::kFullAndPiecewise;
}

// Whether a whole decode step can be recorded.
bool can_record_decode(GraphSupport weakest, int32_t decode_len) {
  return decode_len == 1 ? weakest >= GraphSupport::kUniformSingleTokenDecode
                         : weakest >= GraphSupport::kUniformBatch;
}

}  // namespace

Result<GraphPolicy> parse_graph_policy(std::string_view name) {
  struct Name {
    std::string_view name;
    GraphPolicy policy;
  };
  constexpr Name kNames[] = {{"none", GraphPolicy::kNone},
                             {"piecewise", GraphPolicy::kPiecewise},
                             {"full", GraphPolicy::kFull},
                             {"full_decode_only", GraphPolicy::kFullDecodeOnly},
                             {"full_and_piecewise", GraphPolicy::kFullAndPiecewise}};
  for (const Name& known : kNames) {
    if (name == known.name) {
      return known.policy;
    }
  }
  return fail(ErrorCode::kInvalidArgument, fmt::format("unknown graph mode '{}'", name));
}

std::vector<int32_t> default_capture_sizes(int32_t max_num_seqs,
                                           int32_t decode_len,
                                           int32_t max_num_batched_tokens) {
  const int32_t most =
      std::min({max_num_seqs * decode_len, max_num_batched_tokens, kMaxDefaultSize});
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size < most; size += size < 4     ? size
                                              : size < 8   ? 4
                                              : size < 256 ? 8
                                                           : 16) {
    sizes.push_back(size);
  }
  sizes.push_back(most);
  return sizes;
}

Result<std::vector<int32_t>> parse_capture_sizes(std::string_view text) {
  std::vector<int32_t> sizes;
  const char* at = text.data();
  const char* const end = at + text.size();
  do {
    int32_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    const bool ends = next == end || (*next == ',' && next + 1 < end);
    if (error != std::errc() || !ends || size < 1 || (!sizes.empty() && size <= sizes.back())) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is not a list of ascending sizes like 1,2,4,8", text));
    }
    sizes.push_back(size);
    at = next == end ? end : next + 1;
  } while (at < end);
  return sizes;
}

GraphPlan::GraphPlan(const GraphOptions& options,
                     GraphSupport weakest,
                     int32_t decode_len,
                     int32_t max_num_seqs)
    : sizes_(options.sizes), decode_len_(decode_len), max_num_seqs_(max_num_seqs) {
  if (options.policy == GraphPolicy::kNone) {
    return;
  }
  const GraphMode pieces = wants_pieces(options.policy) ? GraphMode::kPiecewise : GraphMode::kNone;
  const bool full_decode = options.policy != GraphPolicy::kPiecewise;
  decode_ = full_decode && can_record_decode(weakest, decode_len) ? GraphMode::kFull : pieces;
  mixed_ = options.policy == GraphPolicy::kFull && weakest == GraphSupport::kAlways
               ? GraphMode::kFull
               : pieces;
}

int32_t GraphPlan::bucket(int32_t n) const {
  const auto found = std::lower_bound(sizes_.begin(), sizes_.end(), n);
  return found == sizes_.end() ? 0 : *found;
}

int32_t GraphPlan::decode_bucket(int32_t num_rows, int32_t query_len) const {
  for (const int32_t size : sizes_) {
    const int32_t rows = ceil_div(size, query_len);
    if (rows >= num_rows && rows <= max_num_seqs_ && rows * query_len <= sizes_.back()) {
      return rows;
    }
  }
  return 0;
}

GraphChoice GraphPlan::choose(const StepShape& step) const {
  // Rows draft as far as it pays, so any length up to decode_len_ is one of decoding rows.
  const bool uniform = step.query_len > 0 && step.query_len <= decode_len_ && step.num_rows > 0;
  const GraphMode mode = uniform ? decode_ : mixed_;
  GraphChoice choice{GraphMode::kNone, step.num_toks, step.num_rows};
  if (mode == GraphMode::kNone || step.num_toks == 0) {
    return choice;
  }
  if (mode == GraphMode::kFull && uniform) {
    const int32_t rows = decode_bucket(ceil_div(step.num_toks, step.query_len), step.query_len);
    choice.too_large = rows == 0;
    return rows == 0 ? choice : GraphChoice{mode, rows * step.query_len, rows, step.query_len};
  }
  const int32_t toks = bucket(step.num_toks);
  choice.too_large = toks == 0;
  const int32_t rows = mode == GraphMode::kFull ? std::min(toks, max_num_seqs_) : step.num_rows;
  return toks == 0 ? choice : GraphChoice{mode, toks, rows};
}

int32_t GraphPlan::sample_rows(int32_t num_logits) const {
  const bool wanted = decode_ != GraphMode::kNone || mixed_ != GraphMode::kNone;
  const int32_t rows = wanted && num_logits > 0 ? bucket(num_logits) : 0;
  return rows <= max_num_seqs_ * decode_len_ ? rows : 0;
}

}  // namespace warprow
