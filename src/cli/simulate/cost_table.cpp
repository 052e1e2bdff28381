// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/cost_table.h"

#include "cli/simulate/h200_costs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr size_t kMaxPoints = 1000;
constexpr double kMaxCount = 1e7;
constexpr double kMaxUs = 1e9;

AnswerJson curve_json(const CostCurve& curve) {
  AnswerJson json = AnswerJson::array();
  for (const CostCurve::Point& point : curve.points()) {
    json.push_back({point.count, point.value});
  }
  return json;
}

// Reads the fields of one table, and keeps the first error.
class TableReader {
 public:
  TableReader(const AnswerJson& json, const std::string& source) : json_(json), source_(source) {}

  std::string text(const char* name) {
    const AnswerJson value = json_.value(name, AnswerJson(""));
    if (!value.is_string()) {
      refuse(name, value, "a text");
      return "";
    }
    return value.get<std::string>();
  }
  double number(const char* name) {
    const AnswerJson value = json_.value(name, AnswerJson(0));
    if (!is_between(value, 0, kMaxUs)) {
      refuse(name, value, fmt::format("a number from 0 to {}", kMaxUs));
      return 0;
    }
    return value.get<double>();
  }
  CostCurve curve(const char* name) {
    const AnswerJson value = json_.value(name, AnswerJson());
    if (!value.is_array() || value.empty() || value.size() > kMaxPoints) {
      refuse(name,
             value.is_array() ? AnswerJson(fmt::format("{} points", value.size())) : value,
             fmt::format("a list of 1 to {} points [count, value]", kMaxPoints));
      return {};
    }
    std::vector<CostCurve::Point> points;
    for (const AnswerJson& point : value) {
      const double least = points.empty() ? 0 : points.back().count;
      if (!point.is_array() || point.size() != 2 || !is_between(point[0], least, kMaxCount) ||
          point[0] == least || !is_between(point[1], 0, kMaxUs)) {
        refuse(
            name,
            point,
            fmt::format(
                "[count above {}, value from 0 to {}], counts up to {}", least, kMaxUs, kMaxCount));
        return {};
      }
      points.push_back({point[0].get<double>(), point[1].get<double>()});
    }
    return CostCurve(std::move(points));
  }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  static bool is_between(const AnswerJson& value, double least, double most) {
    return value.is_number() && value.get<double>() >= least && value.get<double>() <= most;
  }
  void refuse(const char* name, const AnswerJson& value, const std::string& must) {
    if (error_.empty()) {
      error_ = fmt::format("{}: {}: {} is not {}", source_, name, value.dump(), must);
    }
  }

  const AnswerJson& json_;
  const std::string& source_;
  std::string error_;
};

Result<CostTable> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return fail(
        ErrorCode::kNotFound,
        fmt::format("--costs: '{}' is neither a file nor one of {}", path, built_in_cost_names()));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--costs: '{}' has more than {} bytes", path, kMaxFileBytes));
  }
  return read_cost_table(text, path);
}

}  // namespace

double CostCurve::at(double count) const {
  if (points_.empty()) {
    return 0;
  }
  if (points_.size() == 1 || count <= points_.front().count) {
    return points_.front().value;
  }
  auto above = std::upper_bound(
      points_.begin(), points_.end(), count, [](double c, const Point& p) { return c < p.count; });
  above = above == points_.end() ? std::prev(above) : above;
  const Point& a = *std::prev(above);
  const double share = (count - a.count) / (above->count - a.count);
  return std::max(0.0, a.value + share * (above->value - a.value));
}

void add_row(StepLoad& load, const ScheduledRow& row, int32_t prefill_len) {
  const int64_t n = row.num_tokens;
  const int64_t computed = row.num_computed_tokens;
  load.num_logits += row.num_logits > 0 ? 1 : 0;
  if (computed >= prefill_len) {
    load.decode_context += computed + n;
    ++load.num_decode_rows;
  } else {
    load.prefill_pairs += n * computed + n * (n + 1) / 2;
  }
}

double CostTable::step_us(const StepLoad& load) const {
  const double logits_us =
      load.num_logits > 0 ? decode_us.at(load.num_logits) - prefill_us.at(load.num_logits) : 0;
  const double attention_ns =
      static_cast<double>(load.decode_context) * decode_context_ns.at(load.num_decode_rows) +
      static_cast<double>(load.prefill_pairs) * prefill_pair_ns;
  return prefill_us.at(load.num_toks) + std::max(0.0, logits_us) + 1e-3 * attention_ns;
}

AnswerJson cost_table_json(const CostTable& table) {
  return {{"model", table.model},
          {"machine", table.machine},
          {"prefill_us", curve_json(table.prefill_us)},
          {"decode_us", curve_json(table.decode_us)},
          {"decode_context_ns", curve_json(table.decode_context_ns)},
          {"prefill_pair_ns", table.prefill_pair_ns},
          {"host_us", table.host_us},
          {"request_us", table.request_us}};
}

Result<CostTable> read_cost_table(std::string_view json, const std::string& source) {
  const AnswerJson parsed = AnswerJson::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: no JSON object", source));
  }
  TableReader reader(parsed, source);
  CostTable table;
  table.model = reader.text("model");
  table.machine = reader.text("machine");
  table.prefill_us = reader.curve("prefill_us");
  table.decode_us = reader.curve("decode_us");
  table.decode_context_ns = reader.curve("decode_context_ns");
  table.prefill_pair_ns = reader.number("prefill_pair_ns");
  table.host_us = reader.number("host_us");
  table.request_us = reader.number("request_us");
  if (!reader.error().empty()) {
    return fail(ErrorCode::kInvalidArgument, reader.error());
  }
  return table;
}

Result<CostTable> find_cost_table(const std::string& name) {
  for (const NamedCosts& known : h200_costs()) {
    if (name == known.name) {
      return known.table;
    }
  }
  return read_file(name);
}

std::string built_in_cost_names() {
  std::string names;
  for (const NamedCosts& known : h200_costs()) {
    names += (names.empty() ? "" : "|") + std::string(known.name);
  }
  return names;
}

}  // namespace warprow
