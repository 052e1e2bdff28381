// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/trace_line.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using nlohmann::json;

constexpr size_t kMaxShown = 60;  // characters of a value in an error

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxShown) {
    text.resize(kMaxShown);
    text += "...";
  }
  return text;
}

// Whole numbers also as 12.0, which tables of numbers are written as.
bool is_whole(const json& value) {
  return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
}

json number_or_text(const std::string& cell) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  const bool is_number = error == std::errc() && end == cell.data() + cell.size();
  return is_number && std::isfinite(value) ? json(value) : json(cell);
}

// Reads a number of `width` digits in front of `mark` from the front of text; -1: there is none.
int take_digits(std::string_view& text, size_t width, std::string_view mark) {
  int value = 0;
  if (text.size() < width + mark.size() || text.substr(width, mark.size()) != mark) {
    return -1;
  }
  const std::string digits(text.substr(0, width));
  const char* const behind = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), behind, value);
  if (error != std::errc() || end != behind) {
    return -1;
  }
  text.remove_prefix(width + mark.size());
  return value;
}

}  // namespace

std::vector<std::string> split_csv(std::string_view line) {
  std::vector<std::string> cells;
  for (size_t at = 0; at <= line.size();) {
    const size_t end = std::min(line.find(',', at), line.size());
    std::string_view cell = line.substr(at, end - at);
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
      cell = cell.substr(1, cell.size() - 2);
    }
    cells.emplace_back(cell);
    at = end + 1;
  }
  return cells;
}

TraceLine::TraceLine(std::string_view text,
                     const std::vector<std::string>& header,
                     std::string place)
    : fields_(json::object()), place_(std::move(place)) {
  if (header.empty()) {
    fields_ = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!fields_.is_object()) {
      error_ = fmt::format("{}: no JSON object", place_);
      fields_ = json::object();
    }
    return;
  }
  const std::vector<std::string> cells = split_csv(text);
  if (cells.size() != header.size()) {
    error_ = fmt::format("{}: {} cells; the header has {}", place_, cells.size(), header.size());
    return;
  }
  for (size_t i = 0; i < cells.size(); ++i) {
    fields_[header[i]] = number_or_text(cells[i]);
  }
}

json TraceLine::value(const char* field) {
  const auto found = fields_.find(field);
  if (found == fields_.end()) {
    if (error_.empty()) {
      error_ = fmt::format("{}: {} is missing", place_, field);
    }
    return nullptr;
  }
  return *found;
}

void TraceLine::refuse(const char* field, const json& value, const std::string& must) {
  if (error_.empty()) {
    error_ = fmt::format("{}: {}: {} is not {}", place_, field, shown(value), must);
  }
}

double TraceLine::number(const char* field) {
  constexpr double kMost = 1e12;
  const json read = value(field);
  if (!read.is_number() || std::abs(read.get<double>()) > kMost) {
    refuse(field, read, fmt::format("a number from {} to {}", -kMost, kMost));
    return 0;
  }
  return read.get<double>();
}

int32_t TraceLine::count(const char* field, int32_t least, int32_t most) {
  const json read = value(field);
  if (!is_whole(read) || read.get<double>() < least || read.get<double>() > most) {
    refuse(field, read, fmt::format("a whole number from {} to {}", least, most));
    return 0;
  }
  return static_cast<int32_t>(read.get<double>());
}

int32_t TraceLine::whole(const char* field) {
  return count(field, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
}

double TraceLine::date(const char* field) {
  const json read = value(field);
  const std::string text = read.is_string() ? read.get<std::string>() : "";
  std::string_view rest = text;
  const int year = take_digits(rest, 4, "-");
  const int month = take_digits(rest, 2, "-");
  const int day = take_digits(rest, 2, rest.size() > 2 && rest[2] == 'T' ? "T" : " ");
  const int hour = take_digits(rest, 2, ":");
  const int minute = take_digits(rest, 2, ":");
  double seconds = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), seconds);
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  const bool has_time = hour >= 0 && hour < 24 && minute >= 0 && minute < 60 &&
                        error == std::errc() && seconds >= 0 && seconds < 61;
  if (year < 0 || month < 0 || day < 0 || !date.ok() || !has_time) {
    refuse(field, read, "a date and time as 2023-11-16 18:17:03.98");
    return 0;
  }
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return 86400.0 * static_cast<double>(days) + 3600.0 * hour + 60.0 * minute + seconds;
}

uint64_t TraceLine::key(const char* field) {
  const json read = value(field);
  if (!read.is_string() && !is_whole(read)) {
    refuse(field, read, "a text or a whole number");
    return 0;
  }
  return read.is_string() ? std::hash<std::string>{}(read.get<std::string>())
                          : std::hash<double>{}(read.get<double>());
}

std::vector<uint64_t> TraceLine::keys(const char* field, int32_t most) {
  const json read = value(field);
  if (!read.is_array() || std::cmp_greater(read.size(), most)) {
    refuse(field,
           read.is_array() ? json(fmt::format("a list of {}", read.size())) : read,
           fmt::format("a list of at most {} for as many tokens", most));
    return {};
  }
  std::vector<uint64_t> out;
  out.reserve(read.size());
  for (const json& id : read) {
    if (!is_whole(id)) {
      refuse(field, id, "a whole number");
      return {};
    }
    out.push_back(std::hash<double>{}(id.get<double>()));
  }
  return out;
}

}  // namespace warprow
