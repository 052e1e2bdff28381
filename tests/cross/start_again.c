// SPDX-License-Identifier: Apache-2.0
// Preloaded into programs under the emulator (cmake/toolchains/aarch64.cmake). The kernel cannot start a program of another
// machine, so one that starts itself again (worker processes, bench startup) starts the emulator with itself.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

static const char* const kEmulator[] = {WR_EMULATOR};
enum { kNumEmulator = sizeof kEmulator / sizeof *kEmulator, kMaxArguments = 256 };

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  __typeof__(&posix_spawn) spawn = (__typeof__(&posix_spawn))dlsym(RTLD_NEXT, "posix_spawn");
  if (strcmp(path, "/proc/self/exe") != 0) {
    return spawn(pid, path, actions, attributes, arguments, environment);
  }
  char program[PATH_MAX];
  const ssize_t length = readlink(path, program, sizeof program - 1);
  if (length < 0) {
    return errno;
  }
  program[length] = '\0';
  char* all[kNumEmulator + 1 + kMaxArguments];
  memcpy(all, kEmulator, sizeof kEmulator);
  all[kNumEmulator] = program;
  for (int i = 1;; ++i) {  // the emulator takes the program's name for its first argument
    if (i == kMaxArguments) {
      return E2BIG;
    }
    all[kNumEmulator + i] = arguments[i];
    if (arguments[i] == NULL) {
      return spawn(pid, kEmulator[0], actions, attributes, all, environment);
    }
  }
}
