// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"
#include "attention/forward_context.h"
#include "base/error.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace warprow {

// Which steps run from graphs, as set by the user (names as in vLLM's cudagraph_mode).
enum class GraphPolicy : uint8_t {
  kNone,             // everything eager
  kPiecewise,        // every step in pieces between attention calls
  kFull,             // whole steps wherever the attention backend supports it, else in pieces
  kFullDecodeOnly,   // whole decode steps; everything else eager
  kFullAndPiecewise  // whole decode steps; everything else in pieces
};
Result<GraphPolicy> parse_graph_policy(std::string_view name);

struct GraphOptions {
  GraphPolicy policy = GraphPolicy::kNone;
  std::vector<int32_t> sizes;  // token counts to capture, ascending
  int64_t capture_bytes = 0;   // device memory that one capture takes at most, as estimated
  int64_t sample_bytes = 0;    // the same for a capture of sampling
  int64_t reserved_bytes = 0;  // device memory that captured graphs may take
};

// 1, 2, 4, then multiples of 8 to 256, then of 16, up to the tokens of the largest decode batch: `decode_len` (1 plus drafts) a row.
std::vector<int32_t> default_capture_sizes(int32_t max_num_seqs,
                                           int32_t decode_len,
                                           int32_t max_num_batched_tokens);
// "1,2,4,8": ascending and distinct, each at least 1.
Result<std::vector<int32_t>> parse_capture_sizes(std::string_view text);

// The shape of a step, as graphs see it.
struct StepShape {
  int32_t num_toks = 0;
  int32_t num_rows = 0;
  int32_t query_len = 0;  // tokens of every row when they agree, else 0
};

// How a step runs: its mode and the sizes it is padded to.
struct GraphChoice {
  GraphMode mode = GraphMode::kNone;
  int32_t num_toks = 0;
  int32_t num_rows = 0;
  int32_t query_len = 0;   // kFull: tokens of every row if the graph depends on it, else 0
  bool too_large = false;  // kNone because no captured size is large enough
};

// Decides the mode of each step from the user's policy and the weakest attention backend.
//
// Invariant: a step of mode kNone keeps its sizes; any other is padded to a captured size.
class GraphPlan {
 public:
  GraphPlan() = default;
  // decode_len: tokens of a decoding row at most, 1 plus drafts.
  GraphPlan(const GraphOptions& options,
            GraphSupport weakest,
            int32_t decode_len,
            int32_t max_num_seqs);

  [[nodiscard]] GraphChoice choose(const StepShape& step) const;
  // Logits that sampling is padded to when it runs from a graph; 0: eager.
  [[nodiscard]] int32_t sample_rows(int32_t num_logits) const;
  [[nodiscard]] GraphMode decode_mode() const { return decode_; }
  [[nodiscard]] GraphMode mixed_mode() const { return mixed_; }

 private:
  // The smallest size >= n; 0 if there is none.
  [[nodiscard]] int32_t bucket(int32_t n) const;
  // Rows of the smallest size, rounded up to whole rows, that holds num_rows of query_len tokens each; 0 if none does.
  [[nodiscard]] int32_t decode_bucket(int32_t num_rows, int32_t query_len) const;

  std::vector<int32_t> sizes_;
  int32_t decode_len_ = 1;
  int32_t max_num_seqs_ = 0;
  GraphMode decode_ = GraphMode::kNone;
  GraphMode mixed_ = GraphMode::kNone;
};

}  // namespace warprow
