# SPDX-License-Identifier: Apache-2.0
# 64-bit ARM on an x86-64 Debian: the cross compiler g++-aarch64-linux-gnu, with the libraries and the Rust that
# tools/dev/arm.sh extracts from Debian's packages. Test programs run under an emulator, qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(arm "$ENV{XDG_CACHE_HOME}")
if(NOT arm)
  set(arm $ENV{HOME}/.cache)
endif()
set(arm ${arm}/warprow/deps/arm64)
set(CMAKE_SYSROOT ${arm}/sysroot)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(WARPROW_RUST_TARGET aarch64-unknown-linux-gnu)
set(WARPROW_RUSTC ${arm}/rustc)
find_program(QEMU_AARCH64 qemu-aarch64 REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR ${QEMU_AARCH64} -cpu max -L ${CMAKE_SYSROOT})
