// SPDX-License-Identifier: Apache-2.0
#include "text/ordered_json.h"

#include "files/json_file.h"

#include <fmt/format.h>

namespace warprow {

Result<nlohmann::ordered_json> parse_ordered_object(std::string_view text, std::string_view what) {
  using Json = nlohmann::ordered_json;
  bool too_deep = false;
  const auto watch = [&too_deep](int depth, Json::parse_event_t /*event*/, Json& /*parsed*/) {
    too_deep = too_deep || depth >= kMaxJsonDepth;
    return depth < kMaxJsonDepth;
  };
  Json root = Json::parse(text.begin(), text.end(), watch, false);
  if (too_deep) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}'s JSON nests deeper than {} levels", what, kMaxJsonDepth));
  }
  if (!root.is_object()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is not a JSON object", what));
  }
  return root;
}

}  // namespace warprow
