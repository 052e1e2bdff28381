# SPDX-License-Identifier: Apache-2.0
# The packages that this tree needs, and their installation: Debian 12 and 13 (tested in clean roots), Ubuntu 24.04 (by package
# mapping, untested). Installs only missing packages and asks for root only then. Sourced by tools/dev/common.sh.

min_rust_minor=87 # crates of rust/textkit need Rust 1.87

build_packages=(
  g++ cmake ninja-build ccache git ca-certificates python3 python3-pip
  libfmt-dev libspdlog-dev libexpected-dev nlohmann-json3-dev libyaml-cpp-dev libcli11-dev libedit-dev libssl-dev
  libgtest-dev libgmock-dev
)
ci_packages=(clang-19 libclang-rt-19-dev clang-tidy-19 g++-aarch64-linux-gnu qemu-user python3-venv openmpi-bin)
bench_packages=(libbenchmark-dev)

# The names of Boost's header packages contain the version: Debian 12 has 1.81, Debian 13 and Ubuntu 24.04 have 1.83.
boost_package() {
  local ID='' VERSION_ID=''
  # shellcheck disable=SC1091
  [[ -r /etc/os-release ]] && source /etc/os-release
  if [[ $ID-$VERSION_ID == debian-12 ]]; then
    echo libboost1.81-dev
  else
    echo libboost1.83-dev
  fi
}
build_packages+=("$(boost_package)")

# The browser for tests/e2e/web_page_test.py. Ubuntu has no package of it, so the test is skipped there.
browser_package() {
  local ID=''
  # shellcheck disable=SC1091
  [[ -r /etc/os-release ]] && source /etc/os-release
  if [[ $ID == debian ]]; then echo chromium-headless-shell; fi
}

# Ubuntu's newer Rust is versioned and not in PATH. sudo and cron do not have the PATH that rustup set up.
use_installed_rust() {
  local bin
  for bin in /usr/lib/rust-1.*/bin; do
    if [[ -x $bin/cargo && :$PATH: != *:$bin:* ]]; then PATH=$bin:$PATH; fi
  done
  if [[ :$PATH: != *:$HOME/.cargo/bin:* ]]; then PATH=$PATH:$HOME/.cargo/bin; fi
}
use_installed_rust

has_rust() {
  local version
  version=$(cargo --version 2>/dev/null) || return 1
  [[ $version =~ ^cargo\ 1\.([0-9]+) ]] && [[ ${BASH_REMATCH[1]} -ge $min_rust_minor ]] && command -v rustc >/dev/null
}

# A tool installed without the package manager counts too.
has_tool() {
  case $1 in
    ninja-build) command -v ninja ;;
    python3-pip) python3 -m pip --version ;;
    g++ | cmake | ccache | git | python3 | clang-19 | clang-tidy-19) command -v "$1" ;;
    *) return 1 ;;
  esac >/dev/null 2>&1
}

missing_packages() {
  local installed package
  installed=$(dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    [[ $'\n'$installed$'\n' == *$'\n'"installed $package"$'\n'* ]] || has_tool "$package" || printf '%s ' "$package"
  done
}

# A package of Rust that is new enough. Debian keeps cargo-web current for its browsers; Ubuntu has cargo-1.NN.
rust_packages() {
  local newest
  if apt-cache show cargo-web >/dev/null 2>&1; then
    echo cargo-web rustc-web
    return
  fi
  newest=$(apt-cache search --names-only '^cargo-1\.[0-9]+$' | sed -n 's/^cargo-1\.\([0-9]*\) .*/\1/p' | sort -n | tail -n 1)
  if [[ ${newest:-0} -ge $min_rust_minor ]]; then
    echo "cargo-1.$newest rustc-1.$newest"
  fi
}

as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  else
    sudo "$@"
  fi
}

check_can_install() {
  local wanted=$1
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || die "missing: ${wanted% }. Install them as root, or call ./dev with root or sudo at hand"
    sudo -v || die "missing: ${wanted% }. Installing them needs root"
  fi
}

check_distribution() {
  local ID='' ID_LIKE='' VERSION_ID='' PRETTY_NAME='this system'
  # shellcheck disable=SC1091
  [[ -r /etc/os-release ]] && source /etc/os-release
  case $ID-$VERSION_ID in
    debian-12 | debian-13) return ;;
    ubuntu-24.04) say "Ubuntu 24.04: packages are mapped by name; this has not been tested" ;;
    *)
      if [[ " $ID $ID_LIKE " == *" debian "* || " $ID $ID_LIKE " == *" ubuntu "* ]] && command -v apt-get >/dev/null; then
        say "$PRETTY_NAME has not been tested; trying Debian's package names"
        return
      fi
      die "set-up knows Debian 12, Debian 13 and Ubuntu 24.04, not $PRETTY_NAME. Install with your package manager:
  a C++20 compiler (g++ 12 or newer), cmake 3.25, ninja, ccache, git, python 3.11 with pip, Rust 1.$min_rust_minor with cargo,
  and the development files of fmt, spdlog, tl-expected, nlohmann-json, yaml-cpp, CLI11, libedit, OpenSSL 3, Boost 1.81, GoogleTest;
  then call ./dev again with DEV_SKIP_SETUP=1" ;;
  esac
}

apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o APT::Color=0 "$@"; }

# The static OpenSSL of Debian 13 and Ubuntu 24.04 needs these; Debian 12's does not.
package_packages() {
  local ID='' VERSION_ID=''
  # shellcheck disable=SC1091
  source /etc/os-release
  if [[ $ID != debian || $VERSION_ID != 12 ]]; then echo zlib1g-dev libzstd-dev; fi
}

# set_up build|ci|bench|package: prints nothing if nothing is missing.
set_up() {
  [[ -z ${DEV_SKIP_SETUP:-} ]] || return 0
  local packages=("${build_packages[@]}") missing rust= browser
  case $1 in
    build) ;;
    ci)
      # shellcheck disable=SC2207
      packages+=("${ci_packages[@]}" $(package_packages))
      browser=$(browser_package)
      if [[ -n $browser ]]; then packages+=("$browser"); fi
      ;;
    bench) packages+=("${bench_packages[@]}") ;;
    # shellcheck disable=SC2207
    package) packages+=($(package_packages)) ;;
    *) die "./dev setup takes build, ci, bench or package, not '$1'" 2 ;;
  esac
  command -v apt-get >/dev/null || check_distribution
  missing=$(missing_packages "${packages[@]}")
  has_rust || rust=missing
  [[ -n $missing || -n $rust ]] || return 0

  check_distribution
  check_can_install "$missing${rust:+Rust 1.$min_rust_minor or newer (cargo-web rustc-web)}"
  step "updating the package lists" setup-update apt_install update
  if [[ -n $rust ]]; then
    rust=$(rust_packages)
    [[ -n $rust ]] || die "no Rust of 1.$min_rust_minor or newer in the package lists. Install one with rustup, then call ./dev again"
  fi
  say "to install: $missing$rust"
  # shellcheck disable=SC2086
  step "installing packages" setup-install apt_install install --yes --no-install-recommends $missing $rust
  use_installed_rust
  hash -r
  has_rust || die "cargo is $(cargo --version 2>&1 | head -n 1), but 1.$min_rust_minor or newer is needed (are security updates enabled in the package sources?)"
}
