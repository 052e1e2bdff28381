// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string_view>

namespace warprow {

// Whether `pattern`, a key of PEFT's rank_pattern or alpha_pattern, names the module: as PEFT's
// re.match(r"(.*\.)?(pattern)$", module). Regular expressions may use . \. \d \w [sets] (groups) | * + ? and anchors.
//
// kUnsupported for other constructs; kInvalidArgument for a pattern that takes too many steps. The message does not name the
// pattern.
Result<bool> module_matches(std::string_view pattern, std::string_view module);

}  // namespace warprow
