#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/fetch_clients.sh [CLIENT…]: installs the Python clients that tests/clients/ runs against the server (openai anthropic
# agents langchain litellm schemathesis grafana lm_eval), and abi3audit and mypy for checks of the Python package; all of them without an
# argument. Each has its own environment under ${XDG_CACHE_HOME:-~/.cache}/warprow/clients; pip requires the hash of every package.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
target=${XDG_CACHE_HOME:-$HOME/.cache}/warprow/clients

[[ $# -gt 0 ]] || set -- openai anthropic agents langchain litellm schemathesis grafana lm_eval abi3audit mypy
for client in "$@"; do
  requirements=$here/../tests/clients/requirements-$client.txt
  if ! cmp -s "$requirements" "$target/$client/requirements.txt"; then
    rm -rf "${target:?}/$client"
    python3 -m venv "$target/$client"
    "$target/$client/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r "$requirements"
    cp "$requirements" "$target/$client/requirements.txt"
  fi
done
echo "$target"
