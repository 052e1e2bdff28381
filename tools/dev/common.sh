# SPDX-License-Identifier: Apache-2.0
# Shared by ./dev and the stages of .ci/run: messages, long steps with a log, configuring, checks of the sources.
# Expects root, the checkout.

logs=$root/build/logs
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warprow
# shellcheck source=tools/dev/setup.sh
source "$root/tools/dev/setup.sh"
# shellcheck source=tools/dev/arm.sh
source "$root/tools/dev/arm.sh"

# Compiler cache and Cargo outputs are shared, so a second checkout or preset compiles nothing again.
export CCACHE_DIR=${CCACHE_DIR:-$cache/ccache}
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-6G}
export CCACHE_SLOPPINESS=pch_defines,time_macros # for precompiled headers; nothing here uses __DATE__ or __TIME__

say() { printf '%s\n' "$*" >&2; }

die() {
  printf './dev: %s\n' "$1" >&2
  exit "${2:-1}"
}

# The progress of a log, for the progress line: ninja's [12/80] if there is one.
progress_of() { tail -c 4096 "$1" 2>/dev/null | tr '\r' '\n' | grep -o '^\[[0-9]*/[0-9]*\]' | tail -n 1 || true; }

# Prints an updated line every second until it is killed. The first line comes after a second, so that quick steps print
# nothing.
ticker() {
  local title=$1 log=$2 seconds=0
  while sleep 1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 1))
    printf '\r\033[K%s: %d s %s' "$title" "$seconds" "$(progress_of "$log")" >&2
  done
}

# step [--quiet] TITLE LOGNAME COMMAND...
# Runs COMMAND with its standard error (and output, unless the caller captures it) in build/logs/LOGNAME.log. A line on
# stderr gives title and time; --quiet omits it for quick steps. On failure prints the tail of the log.
step() {
  local quiet=
  if [[ $1 == --quiet ]]; then
    quiet=1
    shift
  fi
  local title=$1 log=$logs/$2.log start=$SECONDS status=0 tick=
  shift 2
  mkdir -p "$logs"
  : >"$log"
  if [[ -t 2 ]]; then
    ticker "$title" "$log" &
    tick=$!
  elif [[ -z $quiet ]]; then
    say "$title ..."
  fi
  "$@" </dev/null >>"$log" 2>&1 || status=$?
  if [[ -n $tick ]]; then
    kill "$tick" 2>/dev/null || true
    wait "$tick" 2>/dev/null || true
    printf '\r\033[K' >&2
  fi
  if [[ $status -ne 0 ]]; then
    tail -n 40 "$log" >&2
    die "$title failed (exit status $status); the whole log: $log" 1
  fi
  printf '%s\t%s\n' "$((SECONDS - start))" "$title" >>"$logs/steps.tsv" # for .ci/times.py
  if [[ -z $quiet || $((SECONDS - start)) -gt 1 ]]; then
    say "$title: done in $((SECONDS - start)) s"
  fi
}

# configure PRESET: once. Later ninja reconfigures by itself when a CMake file changes.
configure() {
  local dir=$root/build/$1
  if [[ ! -f $dir/build.ninja || $root/CMakePresets.json -nt $dir/build.ninja ]]; then
    step "configuring $1" "configure-$1" cmake -S "$root" --preset "$1" \
      -DWARPROW_CARGO_TARGET_DIR="${WARPROW_CARGO_TARGET_DIR:-$cache/deps/textkit}"
    touch "$dir/build.ninja"
  fi
}

# Fetches what cmake/cuda.cmake would otherwise fetch without a progress line.
fetch_cuda() {
  if [[ -z ${CUDACXX:-} ]]; then
    step --quiet "fetching the CUDA toolkit (780 MB, once)" fetch-cuda python3 "$root/tools/fetch_cuda.py" toolkit
  fi
  step --quiet "fetching FlashInfer (65 MB, once)" fetch-flashinfer python3 "$root/tools/fetch_cuda.py" flashinfer
}

# object_of PRESET FILE: ninja's name for the object of a source, or of the files that a unity build compiles with it.
object_of() {
  local dir=$root/build/$1 file unity
  file=$(realpath "$2")
  unity=$(grep -rlF --include='unity_*.cxx' "\"$file\"" "$dir/src" | head -n 1) || true
  if [[ -n $unity ]]; then file=${unity#"$dir/"}; fi
  printf '%s^\n' "$file"
}

# build PRESET [TARGET...]: set-up, configure, compile. A source file as a target is compiled alone.
build() {
  local preset=$1 title="building $*" needs=build target
  local -a targets=()
  shift
  case $preset in
    cpu-debug | cpu-tsan | tidy | cpu-arm) needs=ci ;;
    bench) needs=bench ;;
    package-*) needs=package ;;
  esac
  grep -q "\"name\": \"$preset\"" "$root/CMakePresets.json" || die "no preset '$preset'; see ./dev" 2
  set_up "$needs"
  case $preset in
    *cuda*) fetch_cuda ;;
    cpu-arm) fetch_arm ;;
  esac
  configure "$preset"
  for target in "$@"; do
    if [[ -f $target && $target == *.c* ]]; then target=$(object_of "$preset" "$target"); fi
    targets+=("$target")
  done
  step "$title" "build-$preset" ninja -C "$root/build/$preset" "${targets[@]}"
}

# Our C++ files, or the given ones.
cpp_files() {
  local -a tops=()
  if [[ $# -gt 0 ]]; then
    realpath -- "$@"
  else
    mapfile -t tops < <(find "$root"/{src,tests,bench,rust} -maxdepth 0 -type d 2>/dev/null)
    find "${tops[@]}" -name target -prune -o -type f -regex '.*\.\(h\|cpp\|inl\|cu\|cuh\)' -print | sort
  fi
}

# format [--check] [FILE...]: rewrites files, or names the files that differ and fails.
format() {
  local mode=-i program name
  if [[ ${1:-} == --check ]]; then
    mode=--check
    shift
  fi
  program=$(python3 "$root/tools/fetch.py" clang-format)
  if [[ $mode == -i ]]; then
    cpp_files "$@" | xargs --no-run-if-empty "$program" -i
    cpp_files "$@" | xargs --no-run-if-empty "$program" -i # it may have wrapped a comment; check the line breaks
    return
  fi
  local -a wrong=()
  mapfile -t wrong < <(cpp_files "$@" | xargs --no-run-if-empty "$program" --dry-run --Werror 2>&1 |
    sed -n 's/^\(.*\):[0-9]*:[0-9]*: error: .*clang-format.*/\1/p' | sort -u)
  for name in "${wrong[@]}"; do
    printf 'not formatted: %s\n' "${name#"$root"/}"
  done
  [[ ${#wrong[@]} -eq 0 ]] || die "${#wrong[@]} files are not formatted; ./dev fmt does it"
}

# clang_tidy [FILE...]: the checks of .clang-tidy on these sources or on all of src/, one process per core. Files that
# only a build with CUDA compiles are skipped.
clang_tidy() {
  set_up ci
  configure tidy
  step --quiet "refreshing the compilation database" configure-tidy ninja -C "$root/build/tidy" build.ninja
  if [[ $# -gt 0 ]]; then
    realpath -- "$@"
  else
    find "$root/src" "$root/build/tidy/stubs" -name '*.cpp'
  fi | { grep -vE '/device/cuda/|_(cuda|neon)\.cpp$' || true; } | xargs --no-run-if-empty -n 4 -P "$(nproc)" clang-tidy-19 --quiet -p "$root/build/tidy"
}

tidy() {
  if [[ ${1:-} == --clang ]]; then
    shift
    clang_tidy "$@"
  else
    python3 "$root/tools/tidy.py" "$@"
  fi
}
