#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the validator that checks structured output in tests: jsonschema and its dependencies from PyPI, all pure
# Python (220 KB), and the JSON Schema Test Suite from its source package (300 KB). Prints nothing if they are present.
# Without them, tests that need them are skipped.
set -euo pipefail

# shellcheck source=tools/fetch_folder.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/fetch_folder.sh"

version=4.17.3
begin_folder "jsonschema-$version" suite "the validator jsonschema $version"

pip_with install "jsonschema==$version --hash=sha256:a870ad254da1a8ca84b6a2905cac29d265f805acc57af304784962a2aa6508f6
attrs==23.2.0 --hash=sha256:99b87a485a5820b23b879f04c2305b44b951b502fd64be915879d77a7e8fc6f1
pyrsistent==0.20.0 --hash=sha256:c55acc4733aad6560a7f5f818466631f07efc001fd023f34a6c203f8b6df0f0b" \
  --only-binary :all: --platform any --implementation py --abi none --target "$out"

mkdir "$out/suite"
unpack_source jsonschema "$version" 0f864437ab8b6076ba6707453ef8f98a6a0d512a80e93f8abdb676f737ecb60d \
  -C "$out/suite" --strip-components=3 --no-wildcards-match-slash "jsonschema-$version/json/tests/draft2020-12/*.json"
end_folder
