// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace warprow::cuda {

// Where libcublasLt may lie, best first. A plain file name means the dynamic loader's own search.
// In order: $WARPROW_CUBLASLT; the loader; beside the program; CUDA toolkits; the project's cache
// of build dependencies; NVIDIA's Python wheels in the environments of $VIRTUAL_ENV, /opt and /usr.
std::vector<std::string> cublaslt_candidates();

// Opens the first that loads, as dlopen does. Throws StartupError that lists all of them. `path`
// tells which it was.
void* open_cublaslt(std::string& path);

}  // namespace warprow::cuda
