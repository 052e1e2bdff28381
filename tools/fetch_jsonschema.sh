#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the validator that tests hold structured output against: jsonschema from PyPI, with what it needs, all of pure
# Python (220 KB); and the JSON Schema Test Suite, which its source package carries (300 KB). Silent when they are there.
# Tests skip what needs them if not.
set -euo pipefail

version=4.17.3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warprow/deps
target=$cache/jsonschema-$version
[[ -f $target/.complete && -d $target/suite ]] && exit 0

mkdir -p "$cache"
work=$(mktemp -d "$cache/.jsonschema.XXXXXX")
trap 'rm -rf "$work"' EXIT

echo "fetching the validator jsonschema $version" >&2
python=python3
if ! "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m venv "$work/venv"
  python=$work/venv/bin/python
fi
cat >"$work/requirements.txt" <<REQUIREMENTS
jsonschema==$version --hash=sha256:a870ad254da1a8ca84b6a2905cac29d265f805acc57af304784962a2aa6508f6
attrs==23.2.0 --hash=sha256:99b87a485a5820b23b879f04c2305b44b951b502fd64be915879d77a7e8fc6f1
pyrsistent==0.20.0 --hash=sha256:c55acc4733aad6560a7f5f818466631f07efc001fd023f34a6c203f8b6df0f0b
REQUIREMENTS
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
  --platform any --implementation py --abi none --target "$work/out" --requirement "$work/requirements.txt" >&2
# pip also asks the package for its metadata, for which it fetches the package's build tools.
echo "jsonschema==$version --hash=sha256:0f864437ab8b6076ba6707453ef8f98a6a0d512a80e93f8abdb676f737ecb60d" >"$work/source.txt"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --no-binary :all: --dest "$work" \
  --requirement "$work/source.txt" >&2
mkdir "$work/out/suite"
tar -xzf "$work/jsonschema-$version.tar.gz" -C "$work/out/suite" --strip-components=3 --wildcards \
  --no-wildcards-match-slash "jsonschema-$version/json/tests/draft2020-12/*.json"
touch "$work/out/.complete"
rm -rf "$target"
mv "$work/out" "$target"
