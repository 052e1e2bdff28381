// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// The cells of a line of CSV. Quotes around a cell are dropped; a comma within them ends the cell, too.
std::vector<std::string> split_csv(std::string_view line);

// The fields of one line of a trace, which is a JSON object or, with a header, a row of CSV. The first error is kept: it
// names the place, the field, the value and the limit. After an error fields read as 0.
class TraceLine {
 public:
  // place: as in an error, "FILE:LINE".
  TraceLine(std::string_view text, const std::vector<std::string>& header, std::string place);
  static TraceLine of(nlohmann::json fields, std::string place) {
    return {std::move(fields), std::move(place)};
  }

  [[nodiscard]] bool has(const char* field) const { return fields_.contains(field); }
  // Seconds, milliseconds: from -1e12 to 1e12.
  double number(const char* field);
  int32_t count(const char* field, int32_t least, int32_t most);
  int32_t whole(const char* field);
  // "2023-11-16 18:17:03.9799600", with or without a zone: seconds since the epoch.
  double date(const char* field);
  // A text or a whole number, hashed.
  uint64_t key(const char* field);
  std::vector<uint64_t> keys(const char* field, int32_t most);

  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  TraceLine(nlohmann::json fields, std::string place)
      : fields_(std::move(fields)), place_(std::move(place)) {}

  // A CSV cell becomes a number if it is one.
  [[nodiscard]] nlohmann::json value(const char* field);
  void refuse(const char* field, const nlohmann::json& value, const std::string& must);

  nlohmann::json fields_;
  std::string place_;
  std::string error_;
};

}  // namespace warprow
