// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace warprow::cuda {

// Paths to try for libcublasLt, best first. A plain file name means the dynamic loader's own search. In
// order: $WARPROW_CUBLASLT; the loader; next to the program; CUDA toolkits; the project's cache of build
// dependencies; NVIDIA's Python wheels in the environments of $VIRTUAL_ENV, /opt and /usr.
std::vector<std::string> cublaslt_candidates();

// Opens the first candidate that dlopen loads, and sets `path` to it. Throws StartupError that lists all
// candidates.
void* open_cublaslt(std::string& path);

}  // namespace warprow::cuda
