// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flags/flag_set.h"
#include "engine/request.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// One member of SamplingOptions. Both the sampling flags and the fields of a --prompts-file line come from this table.
// Only types are checked here; engine/validate checks ranges.
struct SamplingField {
  using Member = std::variant<std::optional<double> SamplingOptions::*,
                              std::optional<int64_t> SamplingOptions::*,
                              std::vector<std::string> SamplingOptions::*,
                              std::vector<int64_t> SamplingOptions::*,
                              std::optional<std::vector<int64_t>> SamplingOptions::*,
                              std::map<int64_t, double> SamplingOptions::*,
                              bool SamplingOptions::*>;
  const char* name;  // as in JSON: "top_p"; the flag is --top-p
  Member member;
  const char* help;
  bool common = false;
};

void for_each_sampling_field(const std::function<void(const SamplingField&)>& visit);
const SamplingField* find_sampling_field(std::string_view name);

// The fields that differ from a default SamplingOptions, under their names, as a request body for a server.
nlohmann::json sampling_json(const SamplingOptions& options);

// Adds a flag for each field. options must outlive flags.
void add_sampling_flags(FlagSet& flags, SamplingOptions& options);

}  // namespace warprow
