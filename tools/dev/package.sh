# SPDX-License-Identifier: Apache-2.0
# ./dev package, ./dev wheel and ./dev install. Sourced by ./dev; expects tools/dev/common.sh.

dist=$root/dist
glibc_newest=2.28
deb_depends="libc6 (>= $glibc_newest)"

# What the binary asks of the machine; dies if that is more than a glibc of that version.
check_portable() {
  local binary=$1 library version
  while read -r library; do
    case $library in
      libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | librt.so.1 | ld-linux-*) ;;
      *) die "$binary needs $library, which is no part of glibc" ;;
    esac
  done < <(readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  if readelf -d "$binary" | grep -qE '\((RPATH|RUNPATH)\)'; then die "$binary has a path of this machine in it"; fi
  version=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)
  [[ $(printf '%s\n' "$version" "$glibc_newest" | sort -V | tail -n 1) == "$glibc_newest" ]] ||
    die "$binary asks for glibc $version, which is newer than $glibc_newest"
  say "$(basename "$binary"): $(du -k "$binary" | cut -f1) KiB, glibc $version or newer, nothing else"
}

# stage FLAVOUR FOLDER PREFIX: the files as they are installed under PREFIX, in FOLDER/PREFIX.
stage() {
  local flavour=$1 folder=$2 prefix=$3 binary=$root/build/package-$1/warprow to pages doc
  local -a cuda=()
  if [[ $flavour == cuda ]]; then cuda=(--cuda); fi
  to=$folder$prefix doc=$folder$prefix/share/doc/warprow pages=$root/build/package-$flavour/pages
  rm -rf "$folder"
  DESTDIR=$folder cmake --install "$root/build/package-$flavour" --prefix "$prefix" --component c_interface >/dev/null
  python3 "$root/tools/package/help_pages.py" "$binary" "$pages"
  install -D -m 644 "$pages/bash/warprow" "$to/share/bash-completion/completions/warprow"
  install -D -m 644 "$pages/zsh/_warprow" "$to/share/zsh/vendor-completions/_warprow"
  install -D -m 644 "$pages/fish/warprow.fish" "$to/share/fish/vendor_completions.d/warprow.fish"
  install -d "$to/share/man/man1" "$to/lib/systemd/system" "$doc"
  gzip -9n <"$pages/man1/warprow.1" >"$to/share/man/man1/warprow.1.gz"
  sed "s|@PREFIX@|$prefix|" "$root/packaging/systemd/warprow.service" >"$to/lib/systemd/system/warprow.service"
  install -m 644 "$root/LICENSE" "$root/CHANGELOG.md" "$root/packaging/systemd/warprow.env" "$doc"
  python3 "$root/tools/package/notices.py" --version "$package_version" "${cuda[@]}" "$doc"
  chmod 644 "$to/share/man/man1/warprow.1.gz" "$to/lib/systemd/system/warprow.service" "$doc"/*
}

# The same bytes from the same commit and compiler.
make_tarball() {
  tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$1" . | gzip -9n >"$2"
}

make_deb() {
  local folder=$1 name=$2 file=$3 architecture=$4
  install -d "$folder/DEBIAN" "$folder/usr/share/doc/$name"
  cat >"$folder/DEBIAN/control" <<CONTROL
Package: $name
Version: $package_version
Architecture: $architecture
Maintainer: warprow developers <warprow@localhost>
Installed-Size: $(du -sk "$folder/usr" | cut -f1)
Depends: $deb_depends
Conflicts: $([[ $name == warprow ]] && echo warprow-cuda || echo warprow)
Section: science
Priority: optional
Description: inference engine and OpenAI-compatible server for language models
 One binary with a command line and an HTTP server. It runs transformer
 models from GGUF and safetensors files.
CONTROL
  # Where Debian looks for the licence of a package.
  { echo "warprow"; echo; cat "$folder/usr/share/doc/warprow/LICENSE"; } >"$folder/usr/share/doc/$name/copyright"
  echo "activate-noawait ldconfig" >"$folder/DEBIAN/triggers"
  (cd "$folder" && find usr -type f -printf '%P\0' | sort -z | sed -z 's|^|usr/|' | xargs -0 md5sum >DEBIAN/md5sums)
  find "$folder" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0r touch --no-dereference --date="@$SOURCE_DATE_EPOCH"
  dpkg-deb --root-owner-group -Zxz --build "$folder" "$file" >/dev/null
}

# build_package FLAVOUR: the binary, and the variables of what is made from it.
build_package() {
  [[ $1 == cpu || $1 == cuda ]] || die "./dev package makes cpu or cuda, not '$1'" 2
  build "package-$1" warprow warprow_shared
  check_portable "$root/build/package-$1/warprow"
  check_portable "$root/build/package-$1/libwarprow.so.1"
  package_version=$("$root/build/package-$1/warprow" --version | cut -d' ' -f2)
  SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)}
  export SOURCE_DATE_EPOCH
}

write_sums() {
  (cd "$dist" && find . -maxdepth 1 -name 'warprow*' -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS)
}

# package [cpu|cuda]: a tarball, a .deb and their checksums in dist/.
package() {
  local flavour=${1:-cpu} work name package=warprow architecture
  build_package "$flavour"
  work=$root/build/package-$flavour/stage
  name=warprow-$package_version-linux-$(uname -m)
  if [[ $flavour == cuda ]]; then name+=-cuda package+=-cuda; fi
  architecture=$(dpkg --print-architecture)
  mkdir -p "$dist"
  rm -f "$dist/$name".* "$dist/${package}"_*
  stage "$flavour" "$work/tar" "/$name"
  sed -i "s|^ExecStart=/$name/|ExecStart=/usr/local/|" "$work/tar/$name/lib/systemd/system/warprow.service" # where it is unpacked to
  make_tarball "$work/tar" "$dist/$name.tar.gz"
  stage "$flavour" "$work/deb" /usr
  make_deb "$work/deb" "$package" "$dist/${package}_${package_version}_$architecture.deb" "$architecture"
  install -m 644 "$work/deb/usr/share/doc/warprow/sbom.spdx.json" "$dist/$name.spdx.json"
  write_sums
  (cd "$dist" && ls -l -- *) >&2
}

# wheel [cpu|cuda]: a Python package in dist/, whose path is the last line of the output.
wheel() {
  local flavour=${1:-cpu} documents
  build_package "$flavour"
  documents=$root/build/package-$flavour/wheel-documents
  local -a cuda=()
  if [[ $flavour == cuda ]]; then cuda=(--cuda); fi
  rm -rf "$documents" && mkdir -p "$documents" "$dist"
  python3 "$root/tools/package/notices.py" --version "$package_version" "${cuda[@]}" "$documents"
  cp "$root/LICENSE" "$documents"
  python3 "$root/tools/package/wheel.py" --version "$package_version" --glibc "$glibc_newest" --flavour "$flavour" \
    --licenses "$documents" "$root/build/package-$flavour" "$dist"
  write_sums
}

# pythons: the interpreters from 3.10 on that are here, one of each version: python3 first, then those named python3.N and those of
# WARPROW_PYTHONS (paths with spaces between them).
pythons() {
  local python version seen=' '
  for python in python3 python3.{10..19} ${WARPROW_PYTHONS:-}; do
    version=$("$python" -c 'import sys, ctypes, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if [[ $seen == *" $version "* || ${version#3.} -lt 10 ]]; then continue; fi
    seen+="$version "
    echo "$python"
  done
}

# check_wheel FILE [ARGS OF THE TEST]: installs it into fresh environments of every Python that is here, without a network, tests it
# there (without arguments a part of tests/python/llm_test.py), and takes it away again. Whether the library would load into other versions: it uses
# no symbol of CPython, and abi3audit finds nothing if tools/fetch_clients.sh has fetched it.
check_wheel() {
  local wheel=$1 folder=$root/build/package-cpu/pythons python venv pip audit=$cache/clients/abi3audit/bin/abi3audit
  shift
  [[ $# -gt 0 ]] || set -- -k tokens_are -k ranks -k live_engine -k interrupt
  rm -rf "$folder" && mkdir -p "$folder"
  python3 -m venv "$folder/pip"
  pip=$folder/pip/bin/pip
  for python in $(pythons); do
    venv=$folder/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -m venv --without-pip "$venv"
    "$pip" --python "$venv/bin/python" install --quiet --no-index "$wheel"
    "$pip" --python "$venv/bin/python" check
    "$venv/bin/warprow" --version
    if [[ -f $cache/SmolLM2-135M-Instruct.Q4_1.gguf ]]; then
      (cd / && WARPROW_INSTALLED=1 WARPROW_BUILD=$root/build/package-cpu "$venv/bin/python" "$root/tests/python/llm_test.py" "$@")
    fi
    "$pip" --python "$venv/bin/python" uninstall --quiet --yes warprow
    if find "$venv" -name 'warprow*' | grep .; then die "the wheel leaves files behind in $venv"; fi
    say "the wheel works in $("$python" --version)"
  done
  (cd "$folder" && python3 -m zipfile -e "$wheel" wheel && cp wheel/warprow/lib/libwarprow.so.1 warprow.abi3.so)
  if nm -D --undefined-only "$folder/warprow.abi3.so" | grep -E ' _?Py'; then die "the library uses symbols of CPython"; fi
  if [[ -x $audit ]]; then "$audit" --strict --summary --assume-minimum-abi3 3.10 "$folder/warprow.abi3.so"; fi
}

# install_here [--prefix DIR] [cpu|cuda]: the same files under a prefix of this machine.
install_here() {
  local prefix=/usr/local flavour=cpu work
  while [[ $# -gt 0 ]]; do
    case $1 in
      --prefix) prefix=$(realpath -m -- "${2:?--prefix needs a folder}") && shift ;;
      --prefix=*) prefix=$(realpath -m -- "${1#*=}") ;;
      *) flavour=$1 ;;
    esac
    shift
  done
  build_package "$flavour"
  work=$root/build/package-$flavour/stage/install
  stage "$flavour" "$work" "$prefix"
  if mkdir -p "$prefix" 2>/dev/null && [[ -w $prefix ]]; then
    cp -r "$work$prefix/." "$prefix/"
  else
    as_root mkdir -p "$prefix"
    as_root cp -r --no-preserve=ownership "$work$prefix/." "$prefix/"
  fi
  say "installed in $prefix: $prefix/bin/warprow, with its man page, completions and a systemd unit"
}
