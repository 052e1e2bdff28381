// SPDX-License-Identifier: Apache-2.0
#include "files/cache_paths.h"

#include <cstdlib>

namespace warprow {
namespace {

// An empty variable counts as unset, as in the XDG specification.
std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

CachePaths CachePaths::from_environment() {
  std::string cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) {
    cache = environment("HOME") + "/.cache";
  }
  std::string hub = environment("HF_HUB_CACHE");
  if (hub.empty()) {
    const std::string home = environment("HF_HOME");
    hub = (home.empty() ? cache + "/huggingface" : home) + "/hub";
  }
  return {cache + "/warprow", hub};
}

}  // namespace warprow
