// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/answer.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A function of a count, given by points in ascending order: linear between them, and beyond the last as between the
// last two; below the first as at the first.
class CostCurve {
 public:
  struct Point {
    double count = 0;
    double value = 0;
    bool operator==(const Point&) const = default;
  };

  CostCurve() = default;
  explicit CostCurve(std::vector<Point> points) : points_(std::move(points)) {}
  [[nodiscard]] double at(double count) const;
  [[nodiscard]] const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
};

// What a step's time depends on.
struct StepLoad {
  int32_t num_toks = 0;
  int32_t num_logits = 0;       // rows that yield a token
  int64_t decode_context = 0;   // tokens that decoding rows attend to, summed
  int32_t num_decode_rows = 0;  // rows with one token that is not of a prompt
  int64_t prefill_pairs = 0;    // query-key pairs of prompt tokens
};

// Adds a row whose prefill has prefill_len tokens.
void add_row(StepLoad& load, const ScheduledRow& row, int32_t prefill_len);

// How long a model's steps take on a device. Times are in microseconds, from the start of a step's forward to its
// tokens on the host, with the device never idle.
//
// A step of num_toks tokens takes prefill_us(num_toks), which has the weights and the work that every token brings, and
// one token's logits. Rows that yield tokens add what decode_us has more than prefill_us for so many: their logits and
// their sampling. Attention adds decode_context_ns for each token that decoding rows attend to, and prefill_pair_ns for
// each query-key pair of prompts. Both are left out of the two curves.
struct CostTable {
  std::string model;
  std::string machine;
  CostCurve prefill_us;         // by tokens, of one prompt
  CostCurve decode_us;          // by rows
  CostCurve decode_context_ns;  // by rows, for each token that they attend to
  double prefill_pair_ns = 0;
  double host_us = 0;  // from a token to the start of a step that waits for it
  double request_us =
      0;  // from a request's arrival to the scheduler, and from a token to the client

  [[nodiscard]] double step_us(const StepLoad& load) const;
};

// The text form, one JSON object. read_cost_table: errors name the source, the field, the value and what it must be.
AnswerJson cost_table_json(const CostTable& table);
Result<CostTable> read_cost_table(std::string_view json, const std::string& source);

// The table of a name, else of a file. Errors name the known ones.
Result<CostTable> find_cost_table(const std::string& name);
// "h200-qwen3-0.6b|..."
std::string built_in_cost_names();

}  // namespace warprow
