#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/docs_site/build.sh: builds a static site from the pages of docs/ and of the root in build/site. It loads nothing
# from other hosts. mkdocs is installed once, with the hash of every package, in
# ${XDG_CACHE_HOME:-~/.cache}/warprow/docs_site.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
target=${XDG_CACHE_HOME:-$HOME/.cache}/warprow/docs_site

if ! cmp -s "$here/requirements.txt" "$target/requirements.txt"; then
  rm -rf "${target:?}"
  python3 -m venv "$target"
  "$target/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$target/requirements.txt"
fi
NO_MKDOCS_2_WARNING=1 "$target/bin/mkdocs" build --quiet --clean -f "$here/mkdocs.yml"
echo "$(cd "$here/../.." && pwd)/build/site/start.html"
