// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace warprow {

// The folders of models on this machine. They need not exist.
struct CachePaths {
  // ${XDG_CACHE_HOME:-~/.cache}/warprow
  std::string warprow;
  // HF_HUB_CACHE, else HF_HOME/hub, else ${XDG_CACHE_HOME:-~/.cache}/huggingface/hub
  std::string huggingface_hub;

  // The only code of this room that reads the environment.
  static CachePaths from_environment();
};

}  // namespace warprow
