// SPDX-License-Identifier: Apache-2.0
// What the static libraries use of a glibc newer than the one that glibc_stubs.py leaves, written with older functions. Linked
// into the portable binary, and without the start into the portable library (WR_SHARED).
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// What the glibc at hand has itself; null before the version that brought it.
static int (*newer_clockwait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
static int (*newer_addclosefrom)(posix_spawn_file_actions_t*, int);
static struct mallinfo2 (*newer_mallinfo)(void);

__attribute__((constructor(101))) static void find_newer(void) {
  *(void**)&newer_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  *(void**)&newer_addclosefrom = dlsym(RTLD_NEXT, "posix_spawn_file_actions_addclosefrom_np");
  *(void**)&newer_mallinfo = dlsym(RTLD_NEXT, "mallinfo2");
}

#if !defined(WR_SHARED)
// ---- 2.34: start. The start code of a newer glibc leaves constructors to __libc_start_main, of which the old version calls them
// only through `init`.
typedef void (*Constructor)(int, char**, char**);
extern Constructor __preinit_array_start[] __attribute__((visibility("hidden")));
extern Constructor __preinit_array_end[] __attribute__((visibility("hidden")));
extern Constructor __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor __init_array_end[] __attribute__((visibility("hidden")));

static void call_constructors(int argc, char** argv, char** environment) {
  for (Constructor* each = __preinit_array_start; each < __preinit_array_end; ++each) {
    (*each)(argc, argv, environment);
  }
  for (Constructor* each = __init_array_start; each < __init_array_end; ++each) {
    (*each)(argc, argv, environment);
  }
}

int __real___libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, Constructor init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end);
int __wrap___libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, Constructor init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end) {
  return __real___libc_start_main(main, argc, argv, init != NULL ? init : call_constructors, fini, loader_fini, stack_end);
}
#endif

// ---- 2.34: no inherited files in a new process. Without it, each number is closed up to a few after the last one in use.
int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t* actions, int first) {
  if (newer_addclosefrom != NULL) {
    return newer_addclosefrom(actions, first);
  }
  int last = 1024;
  DIR* files = opendir("/proc/self/fd");
  if (files != NULL) {
    for (struct dirent* file = readdir(files); file != NULL; file = readdir(files)) {
      const int number = atoi(file->d_name);
      last = number > last ? number : last;
    }
    closedir(files);
  }
  int error = 0;
  for (int number = first; number <= last + 64 && error == 0; ++number) {
    error = posix_spawn_file_actions_addclose(actions, number);
  }
  return error;
}

// ---- 2.35: where a function's unwind table lies, for libgcc.
struct Search {
  uintptr_t address;
  struct dl_find_object* result;
};

static int find_in(struct dl_phdr_info* object, size_t size, void* data) {
  (void)size;
  const struct Search* search = data;
  const ElfW(Phdr)* table = NULL;
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
  int is_inside = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &object->dlpi_phdr[i];
    const uintptr_t first = object->dlpi_addr + header->p_vaddr;
    const uintptr_t last = first + header->p_memsz;
    if (header->p_type == PT_LOAD) {
      is_inside |= search->address >= first && search->address < last;
      begin = first < begin ? first : begin;
      end = last > end ? last : end;
    } else if (header->p_type == PT_GNU_EH_FRAME) {
      table = header;
    }
  }
  if (!is_inside || table == NULL) {
    return 0;
  }
  search->result->dlfo_map_start = (void*)begin;
  search->result->dlfo_map_end = (void*)end;
  search->result->dlfo_eh_frame = (void*)(object->dlpi_addr + table->p_vaddr);
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* result) {
  struct Search search = {(uintptr_t)address, result};
  return dl_iterate_phdr(find_in, &search) == 1 ? 0 : -1;
}

// ---- 2.32: whether the process never had a second thread, for libstdc++. No is always right.
char __libc_single_threaded = 0;

// ---- 2.30: waiting by another clock. Without it by the wall clock, whose jumps move the deadline.
static struct timespec on_wall_clock(clockid_t clock, const struct timespec* deadline) {
  struct timespec now, wall;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  int64_t ns = (int64_t)(deadline->tv_nsec) - now.tv_nsec + wall.tv_nsec;
  time_t seconds = deadline->tv_sec - now.tv_sec + wall.tv_sec;
  while (ns < 0) {
    ns += 1000000000;
    --seconds;
  }
  const struct timespec result = {seconds + ns / 1000000000, ns % 1000000000};
  return result;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* deadline) {
  if (newer_clockwait != NULL) {
    return newer_clockwait(condition, mutex, clock, deadline);
  }
  const struct timespec wall = on_wall_clock(clock, deadline);
  return pthread_cond_timedwait(condition, mutex, &wall);
}

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// ---- 2.38: numbers in the syntax of C23, whose headers redirect to these; 0b is not read then. A copy with a limit.
#define OLD_NUMBER(type, name, character)                                                  \
  type old_##name(const character* text, character** end, int base) __asm__(#name);        \
  type __isoc23_##name(const character* text, character** end, int base);                  \
  type __isoc23_##name(const character* text, character** end, int base) {                 \
    return old_##name(text, end, base);                                                    \
  }
OLD_NUMBER(long, strtol, char)
OLD_NUMBER(unsigned long, strtoul, char)
OLD_NUMBER(long long, strtoll, char)
OLD_NUMBER(unsigned long long, strtoull, char)
OLD_NUMBER(intmax_t, strtoimax, char)
OLD_NUMBER(uintmax_t, strtoumax, char)
OLD_NUMBER(long, wcstol, wchar_t)

size_t strlcpy(char* target, const char* source, size_t size);
size_t strlcpy(char* target, const char* source, size_t size) {
  const size_t length = strlen(source);
  if (size > 0) {
    const size_t copied = length < size ? length : size - 1;
    memcpy(target, source, copied);
    target[copied] = '\0';
  }
  return length;
}

// ---- 2.36: randomness, for libstdc++ and libedit's libbsd.
uint32_t arc4random(void) {
  uint32_t value;
  while (getentropy(&value, sizeof value) != 0) {
  }
  return value;
}

// ---- 2.33: counters of the heap in 64 bits; the older function has 32.
struct mallinfo2 mallinfo2(void) {
  if (newer_mallinfo != NULL) {
    return newer_mallinfo();
  }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const struct mallinfo narrow = mallinfo();
#pragma GCC diagnostic pop
  struct mallinfo2 wide = {0};
  wide.uordblks = (unsigned)narrow.uordblks;
  wide.hblkhd = (unsigned)narrow.hblkhd;
  return wide;
}

// ---- 2.33: until then these were macros over numbered functions.
#if defined(__x86_64__)
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
int __xstat(int version, const char* path, struct stat* result);
int __lxstat(int version, const char* path, struct stat* result);
int __fxstat(int version, int file, struct stat* result);
int __fxstatat(int version, int folder, const char* path, struct stat* result, int flags);
int stat(const char* path, struct stat* result) { return __xstat(kStatVersion, path, result); }
int lstat(const char* path, struct stat* result) { return __lxstat(kStatVersion, path, result); }
int fstat(int file, struct stat* result) { return __fxstat(kStatVersion, file, result); }
int fstatat(int folder, const char* path, struct stat* result, int flags) {
  return __fxstatat(kStatVersion, folder, path, result, flags);
}
// The same struct on 64-bit systems.
int stat64(const char* path, struct stat64* result) __attribute__((alias("stat")));
int lstat64(const char* path, struct stat64* result) __attribute__((alias("lstat")));
int fstat64(int file, struct stat64* result) __attribute__((alias("fstat")));
int fstatat64(int folder, const char* path, struct stat64* result, int flags) __attribute__((alias("fstatat")));
