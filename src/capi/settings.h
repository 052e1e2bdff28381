// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"

#include <string>
#include <string_view>

namespace warprow {

// The settings of warprow_engine_create: defaults, then the file that WARPROW_CONFIG names, then WARPROW_... variables,
// then the JSON. kInvalidArgument names a member that is no setting, or whose value the setting does not take.
Result<EngineConfig> read_settings(std::string_view json);

// The warprow binary that was installed with this library, or "" if there is none.
std::string installed_binary();

}  // namespace warprow
