#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the tokenizer test vectors of llama.cpp (ggml-vocab-*.gguf with .inp and .out, and its collection of chat
# templates) out of the source package llama-cpp-python 0.3.36 on PyPI (77 MB, kept nowhere; the vectors are 100 MB).
# Silent when they are there already. tests/text looks for them and skips without them.
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
"$python" -m pip --version >/dev/null 2>&1 || { "$python" -m venv "$work/venv" && python=$work/venv/bin/python; }
# pip asks the package for its metadata after the download, which needs the package's build tools; the archive has its
# checksum here, so what pip thinks of it does not matter, only that the file arrived.
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
  --dest "$work" "llama-cpp-python==$version" >&2 || true
archive=$work/llama_cpp_python-$version.tar.gz
[[ -f $archive ]] || { echo "could not fetch llama-cpp-python $version" >&2; exit 1; }
echo "$sha256  $archive" | sha256sum --check --quiet >&2

mkdir "$work/out"
tar -xzf "$archive" -C "$work/out" --strip-components=4 --wildcards \
  "llama_cpp_python-$version/vendor/llama.cpp/models/ggml-vocab-*" \
  "llama_cpp_python-$version/vendor/llama.cpp/models/templates/*"
touch "$work/out/.complete"
rm -rf "$target"
mv "$work/out" "$target"
