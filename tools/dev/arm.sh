# SPDX-License-Identifier: Apache-2.0
# The whole tree for 64-bit ARM, cross-compiled and tested under an emulator: ./dev test --arm, .ci/stage arm_tree. Sourced by
# tools/dev/common.sh.
#
# Libraries and Rust are Debian's packages for arm64. They are extracted and not installed, so this needs no root and changes
# nothing of the machine. cmake/toolchains/aarch64.cmake knows the folder.

arm=$cache/deps/arm64
arm_lists=$arm/apt # apt's own files

# arm_apt ARCHITECTURE ARGS...: apt-get for a machine of that kind on which nothing is installed.
arm_apt() {
  apt-get --quiet --yes --no-install-recommends -o APT::Architecture="$1" -o APT::Architectures::=arm64 -o APT::Architectures::=amd64 \
    -o Dir::State::lists="$arm_lists/lists" -o Dir::State::status="$arm_lists/status" -o Dir::Cache="$arm_lists/cache" \
    -o Acquire::Languages=none -o APT::Sandbox::User= -o Debug::NoLocking=1 "${@:2}"
}

# extract_with_needs ARCHITECTURE FOLDER PACKAGE...: the packages and all that they depend on.
extract_with_needs() {
  local archives=$arm_lists/cache/archives file
  mkdir -p "$archives/partial" "$2"
  rm -f "$archives"/*.deb
  arm_apt "$1" --download-only install "${@:3}" || return 1
  for file in "$archives"/*.deb; do
    # What runs here runs with the machine's C library.
    if [[ $1 == arm64 || $file != */libc6_* ]]; then dpkg --extract "$file" "$2" || return 1; fi
  done
}

make_arm_sysroot() {
  local package link
  local -a libraries=(libc6-dev)
  for package in "${build_packages[@]}"; do
    if [[ $package == *-dev ]]; then libraries+=("$package"); fi
  done
  rm -rf "$arm"
  mkdir -p "$arm_lists/lists/partial"
  : >"$arm_lists/status"
  arm_apt arm64 update || return 1
  extract_with_needs arm64 "$arm/sysroot" "${libraries[@]}" || return 1
  if [[ ! -e $arm/sysroot/lib ]]; then ln --symbolic usr/lib "$arm/sysroot/lib"; fi # from Debian 13 on no package has it
  while IFS= read -r link; do # absolute links would lead to the machine's own files
    ln --symbolic --force --relative "$arm/sysroot$(readlink "$link")" "$link" || return 1
  done < <(find "$arm/sysroot" -type l -lname '/*')
  # A Rust compiler with the standard libraries of both machines, all of one version. Its package would bring a C compiler.
  extract_with_needs amd64 "$arm/rust" libstd-rust-web-dev || return 1
  (cd "$arm_lists" && arm_apt amd64 download rustc-web libstd-rust-web-dev:arm64) || return 1
  for package in "$arm_lists"/*.deb; do dpkg --extract "$package" "$arm/rust" || return 1; done
  printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$arm/rust/usr/lib/x86_64-linux-gnu" "$arm/rust/usr/bin/rustc" >"$arm/rustc"
  chmod +x "$arm/rustc"
  "$arm/rustc" --version || return 1
  rm -rf "$arm_lists"
  arm_version >"$arm/version"
}

# What the folder was made from; another answer makes it anew.
arm_version() {
  local ID='' VERSION_ID=''
  # shellcheck disable=SC1091
  source /etc/os-release
  echo "$ID $VERSION_ID" "${build_packages[@]}"
}

# What cmake/toolchains/aarch64.cmake expects.
fetch_arm() {
  [[ $(uname -m) == x86_64 ]] || die "cpu-arm cross-compiles on x86-64; this is $(uname -m)"
  if [[ $(cat "$arm/version" 2>/dev/null) != "$(arm_version)" ]]; then
    step "fetching Debian's packages for ARM (180 MB, once)" fetch-arm make_arm_sysroot
  fi
}

# test_arm [ARGS...]: the tests that an emulator can run; ARGS go to ctest.
test_arm() {
  local left_out
  build cpu-arm
  left_out=$(sed 's, *#.*,,; /^$/d' "$root/tests/cross/not_emulated.txt" | paste -sd '|')
  exec ctest --test-dir "$root/build/cpu-arm" --output-on-failure --no-tests=error --progress -j"$(nproc)" --exclude-regex "^($left_out)" "$@"
}
