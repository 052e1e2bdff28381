#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the CPU kernels for 64-bit ARM with Debian's cross compiler (g++-aarch64-linux-gnu) and runs those of the
# linear layer under an emulator (qemu-user), comparing them with the portable ones. Usage: tools/dev/cross_arm.sh [OUTPUT-FOLDER]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:-$root/build/arm}
mkdir -p "$out"
flags=(-std=c++20 -O2 -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno -I "$root/src")
compiler=(aarch64-linux-gnu-g++)
if command -v ccache >/dev/null; then compiler=(ccache "${compiler[@]}"); fi

# Compiles an object file, one process per core: NAME FLAGS... -c SOURCE.
pids=()
object() {
  local name=$1
  shift
  while [[ $(jobs -pr | wc -l) -ge $(nproc) ]]; do sleep 0.1; done
  "${compiler[@]}" "${flags[@]}" "$@" -o "$out/$name.o" &
  pids+=($!)
}

# Like the stubs of cmake/stubs.cmake: loops ISA SOURCE NAME FLAGS...
loops() { object "$3" -O3 -DWR_ISA="$1" "${@:4}" -x c++ -c "$2"; }

linear=$root/src/kernels/linear/cpu
loops neon "$linear/panel_loops.inl" neon -march=armv8.2-a+dotprod
object dispatch -c "$linear/panel_kernels.cpp"
for source in "$root"/src/kernels/*/{,cpu/}*_loops.inl; do
  loops generic "$source" "$(basename "$source" .inl)_generic"
done
for pid in "${pids[@]}"; do wait "$pid"; done
aarch64-linux-gnu-g++ "${flags[@]}" "$root/tests/cross/neon_panels.cpp" "$out/neon.o" "$out/panel_loops_generic.o" -static -o "$out/neon_panels"
qemu-aarch64 -cpu max "$out/neon_panels"
