#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the tokenizer test vectors of llama.cpp (ggml-vocab-*.gguf with .inp and .out) and its collection of chat
# templates from the source package llama-cpp-python 0.3.36 on PyPI. It downloads 77 MB and keeps 75 MB. Prints nothing
# if they are present. Without them, tests that need them are skipped.
set -euo pipefail

# shellcheck source=tools/fetch_folder.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/fetch_folder.sh"

version=0.3.36
begin_folder "ggml-vocab-$version" templates "the tokenizer test vectors (llama-cpp-python $version, 77 MB)"
unpack_source llama-cpp-python "$version" 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e \
  -C "$out" --strip-components=4 "llama_cpp_python-$version/vendor/llama.cpp/models/ggml-vocab-*" \
  "llama_cpp_python-$version/vendor/llama.cpp/models/templates/*"
end_folder
