// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace warprow {

// Where models are kept on this machine. Paths need not exist.
struct CachePaths {
  std::string warprow;          // ${XDG_CACHE_HOME:-~/.cache}/warprow
  std::string huggingface_hub;  // HF_HUB_CACHE, else HF_HOME/hub, else ${XDG_CACHE_HOME:-~/.cache}/huggingface/hub

  // The only place of this room that reads the environment.
  static CachePaths from_environment();
};

}  // namespace warprow
