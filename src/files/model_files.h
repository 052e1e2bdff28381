// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/cache_paths.h"

#include <string>
#include <string_view>

namespace warprow {

// A model found on this machine.
struct ModelFiles {
  enum class Kind {
    kGguf,  // path is the .gguf file, or the first of its parts, which also holds tokenizer and chat template
    kHfDir,  // path is a directory: config.json, safetensors, tokenizer.json and so on
  };
  Kind kind = Kind::kGguf;
  std::string path;
  std::string display_name;  // for messages and responses: the alias, org/name, or the stem
};

// Whether a model must have weights. Without them it can be planned and timed, but its output is meaningless.
enum class WeightFiles {
  kRequired,
  kNotRead,  // a directory with a config.json is enough; weights that exist are not read
};

// The forms in which a user may name a model:
//   an alias          `smollm2`, the default model in warprow's own cache or the Hugging Face cache
//   a path            to a .gguf file (of a file in parts, to the first), or to a Hugging Face directory
//                     (config.json + safetensors)
//   org/name[@rev]    a snapshot in the Hugging Face cache (rev: branch, tag or commit)
//   org/name[@rev]:Q  the .gguf file in it that holds quantisation Q
// They are tried in this order. The error is one line if none matches. Reads names and sizes only, opens no
// weights.
Result<ModelFiles> resolve_model(std::string_view name,
                                 const CachePaths& caches = CachePaths::from_environment(),
                                 WeightFiles weights = WeightFiles::kRequired);

}  // namespace warprow
