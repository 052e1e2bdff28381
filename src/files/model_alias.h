// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/cache_paths.h"
#include "files/hub_name.h"

#include <string>
#include <string_view>

namespace warprow {

// A short name of one .gguf file, pinned by its hash.
struct ModelAlias {
  std::string_view name;
  HubName hub;   // the revision is a commit
  HubFile file;  // with its SHA-256
};

// Null if the name is no alias.
const ModelAlias* find_alias(std::string_view name);

// Where ./dev puts an alias's file, and where a download does.
std::string alias_path(const ModelAlias& alias, const CachePaths& caches);
std::string alias_hub_path(const ModelAlias& alias, const CachePaths& caches);

}  // namespace warprow
