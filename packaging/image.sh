#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The image of packaging/Dockerfile with buildah and without a registry: its base is a Debian that debootstrap makes.
# Usage, as root, after ./dev package: packaging/image.sh [warprow|warprow-cuda] [MIRROR]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
package=${1:-warprow}
base=localhost/debian-minbase:12
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot} STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} # neither user namespaces nor overlays are needed

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  debootstrap --variant=minbase bookworm "$work" ${2:+"$2"} >&2
  rm -rf "$work"/var/cache/apt/archives/*.deb "$work"/var/lib/apt/lists/*
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$work" / >/dev/null
  buildah commit --quiet "$container" "$base" >/dev/null
  buildah rm "$container" >/dev/null
fi
buildah build --build-arg "BASE=$base" --build-arg "PACKAGE=$package" -f "$root/packaging/Dockerfile" -t "$package" "$root/dist"
