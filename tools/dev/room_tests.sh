# SPDX-License-Identifier: Apache-2.0
# ./dev test ROOM, ./dev test ROOM,ROOM and ./dev watch. Sourced by ./dev; expects tools/dev/common.sh.

# Whether a room has a test program test_ROOM (tests/CMakeLists.txt).
has_program() { [[ $1 != *[!a-z_]* ]] && compgen -G "$root/tests/$1/*_test.cpp" >/dev/null; }

all_programs() {
  local folder
  for folder in "$root"/tests/*/; do
    if has_program "$(basename "$folder")"; then printf '%s ' "$(basename "$folder")"; fi
  done
}

# Groups of tests in Python: ctest's names are GROUP.NAME.
script_groups=(e2e clients tools)

# ctest_of PRESET REGEX ARGS...: prints what fails and the summary.
ctest_of() {
  exec ctest --test-dir "$root/build/$1" --output-on-failure --no-tests=error --progress -j"$(nproc)" --tests-regex "$2" "${@:3}"
}

# GoogleTest's patterns for SUITE or SUITE.CASE, whatever instance and parameter the full names have around them.
filter_of() {
  if [[ $1 == *.* ]]; then
    printf '%s' "$1:*/$1:$1/*:*/$1/*"
  else
    printf '%s' "$1.*:*/$1.*:$1/*.*:*/$1/*.*"
  fi
}

# run_program PRESET ROOM NAME ARGS...: the tests of one suite or case, with their output.
run_program() {
  local program=test_$2 name=$3 filter
  filter=$(filter_of "$name")
  cd "$root/build/$1/tests" || return 1
  if [[ $("./$program" --gtest_list_tests --gtest_filter="$filter") != *$'\n  '* ]]; then
    say "$2 has these suites:"
    "./$program" --gtest_list_tests | sed -n 's/^\([^ ]*\)\..*/  \1/p' | sort -u >&2
    die "$2 has no test '$name'" 2
  fi
  exec "./$program" --gtest_filter="$filter" "${@:4}"
}

no_tests_of() {
  say "tests are in: $(all_programs)${script_groups[*]}"
  die "no tests of '$1'; a part of a name is found by ./dev test -R NAME" 2
}

# test_rooms ROOM,ROOM... [ARGS...]: the same for several rooms, in one build.
test_rooms() {
  local room
  local -a rooms=() programs=()
  IFS=, read -r -a rooms <<<"$1"
  for room in "${rooms[@]}"; do
    if ! has_program "$room"; then no_tests_of "$room"; fi
    if [[ $room == cuda* ]]; then die "$room needs a GPU, so it cannot be in a list; ./dev test $room" 2; fi
    programs+=("test_$room")
  done
  build dev "${programs[@]}"
  if grep -rqi smollm2 "${rooms[@]/#/$root/tests/}"; then fetch_model; fi
  ctest_of dev "^(${1//,/|})\." "${@:2}"
}

# test_room ROOM[.SUITE[.CASE]] [ARGS...]: builds the test program of the room and nothing else.
test_room() {
  local room=${1%%.*} name='' preset=dev
  if [[ $1 == *.* ]]; then name=${1#*.}; fi
  shift
  if [[ " ${script_groups[*]} " == *" $room "* ]]; then
    preset=cpu-release
    if [[ $room == tools ]]; then
      configure "$preset"
    else
      build "$preset" warprow
      fetch_model
    fi
    ctest_of "$preset" "^$room\\.${name:+$name\$}" "$@"
  fi
  if ! has_program "$room"; then no_tests_of "$room"; fi
  if [[ $room == cuda* ]]; then
    need_gpu
    preset=cuda-release
  fi
  build "$preset" "test_$room"
  if grep -rqi smollm2 "$root/tests/$room"; then fetch_model; fi
  if [[ -z $name ]]; then ctest_of "$preset" "^$room\\." "$@"; fi
  run_program "$preset" "$room" "$name" "$@"
}

# The room whose tests a changed file concerns first.
room_of() {
  local room=${1#"$root"/}
  room=${room#*/}
  room=${room%%/*}
  if has_program "$room"; then printf '%s' "$room"; fi
}

# watch_tests [ROOM[.SUITE[.CASE]]]
watch_tests() {
  local name=${1:-} target=${1:-} stamp changed
  stamp=$(mktemp)
  # shellcheck disable=SC2064
  trap "rm -f '$stamp'" EXIT
  while true; do
    touch "$stamp" # what changes while tests run counts
    if [[ -n $target ]]; then "$root/dev" test "$target" || true; fi
    say "waiting for a change ${name:+(then: $name) }..."
    while true; do
      changed=$(find "$root"/{src,tests,rust,cmake} "$root/CMakeLists.txt" -name target -prune -o -type f -newer "$stamp" \
        -not -name '.*' -not -name '*~' -print -quit)
      [[ -z $changed ]] || break
      sleep 0.5
    done
    target=${name:-$(room_of "$changed")}
    say "${changed#"$root"/} changed${target:+: $target}"
  done
}
