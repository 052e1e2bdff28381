#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the tokenizer test vectors of llama.cpp (ggml-vocab-*.gguf with .inp and .out) and its
# collection of chat templates out of the source package llama-cpp-python 0.3.36 on PyPI: a download
# of 77 MB, of which 75 MB are kept. Silent when they are there. Tests skip what needs them if not.
set -euo pipefail

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warprow/deps
target=$cache/ggml-vocab-$version
[[ -f $target/.complete ]] && exit 0

mkdir -p "$cache"
work=$(mktemp -d "$cache/.vocab.XXXXXX")
trap 'rm -rf "$work"' EXIT

echo "fetching the tokenizer test vectors (llama-cpp-python $version, 77 MB)" >&2
python=python3
if ! "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m venv "$work/venv"
  python=$work/venv/bin/python
fi
# pip also asks the package for its metadata, for which it fetches the package's build tools.
echo "llama-cpp-python==$version --hash=sha256:$sha256" >"$work/requirements.txt"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
  --no-binary llama-cpp-python --dest "$work" --requirement "$work/requirements.txt" >&2
archive=$work/llama_cpp_python-$version.tar.gz

mkdir "$work/out"
tar -xzf "$archive" -C "$work/out" --strip-components=4 --wildcards \
  "llama_cpp_python-$version/vendor/llama.cpp/models/ggml-vocab-*" \
  "llama_cpp_python-$version/vendor/llama.cpp/models/templates/*"
touch "$work/out/.complete"
rm -rf "$target"
mv "$work/out" "$target"
