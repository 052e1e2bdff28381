#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the CPU kernels for 64-bit ARM with Debian's cross compiler (g++-aarch64-linux-gnu) and runs the linear layer's under
# an emulator (qemu-user) against the portable ones. Usage: tools/dev/cross_arm.sh [OUTPUT-FOLDER]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:-$root/build/arm}
mkdir -p "$out"
flags=(-std=c++20 -O2 -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno -I "$root/src")
compile() { aarch64-linux-gnu-g++ "${flags[@]}" "$@"; }

linear=$root/src/kernels/linear
compile -O3 -march=armv8.2-a+dotprod -c "$linear/panel_kernels_neon.cpp" -o "$out/neon.o"
compile -c "$linear/panel_kernels_generic.cpp" -o "$out/generic.o"
compile -c "$linear/panel_kernels.cpp" -o "$out/dispatch.o"
for source in "$root"/src/kernels/*/*_generic.cpp; do
  compile -O3 -c "$source" -o "$out/$(basename "$source" .cpp).o"
done
compile "$root/tests/cross/neon_panels.cpp" "$out/neon.o" "$out/generic.o" -static -o "$out/neon_panels"
qemu-aarch64 -cpu max "$out/neon_panels"
