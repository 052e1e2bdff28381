#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of cmake/portable: a small program linked against the stubs of an older glibc, with what the shims write anew."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PORTABLE = ROOT / "cmake/portable"
sys.path.insert(0, str(PORTABLE))
import glibc_stubs  # noqa: E402

CXX = os.environ.get("CXX", "c++")
LISTING = """
     1: 0000000000027000   120 FUNC    GLOBAL DEFAULT   16 pow@GLIBC_2.2.5
     2: 0000000000027100   120 FUNC    GLOBAL DEFAULT   16 pow@@GLIBC_2.29
     3: 0000000000027200    20 IFUNC   WEAK   DEFAULT   16 memcpy@@GLIBC_2.14
     4: 0000000000027200    20 FUNC    GLOBAL DEFAULT   16 memcpy@GLIBC_2.2.5
     5: 00000000001d5000     8 OBJECT  WEAK   DEFAULT   33 environ@@GLIBC_2.2.5
     6: 0000000000027300   120 FUNC    GLOBAL DEFAULT   16 arc4random@@GLIBC_2.36
     7: 0000000000000010     4 TLS     GLOBAL DEFAULT   27 errno@@GLIBC_2.2.5
     8: 0000000000027400   120 FUNC    GLOBAL DEFAULT   16 __libc_early_init@@GLIBC_PRIVATE
     9: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND __tls_get_addr@GLIBC_2.3 (2)
"""
# Ends with 0, or with the number of the check that failed.
PROGRAM = r"""
#include <cerrno>
#include <cstdint>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>
#include <vector>

extern "C" void* no_symbol(void*, const char*) { return nullptr; }
extern "C" uint32_t arc4random(void);
extern "C" size_t strlcpy(char*, const char*, size_t);
extern "C" unsigned long __isoc23_strtoul(const char*, char**, int);

static bool copies_and_reads() {
  char text[4] = "...";
  return strlcpy(text, "12345", sizeof text) == 5 && std::string(text) == "123" && strlcpy(text, "9", 0) == 1 &&
         std::string(text) == "123" && __isoc23_strtoul("77", nullptr, 8) == 63;
}

static std::vector<int> made_before_main(3, 7);

static bool throws_and_catches(int depth) {
  try {
    if (depth == 0) {
      throw std::runtime_error("thrown");
    }
    return throws_and_catches(depth - 1);
  } catch (const std::runtime_error& error) {
    return std::string(error.what()) == "thrown";
  }
}

static bool waits_for(long milliseconds) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  timespec begin, deadline, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  deadline = begin;
  deadline.tv_nsec += milliseconds * 1000000;
  if (deadline.tv_nsec >= 1000000000) {
    deadline.tv_nsec -= 1000000000;
    ++deadline.tv_sec;
  }
  pthread_mutex_lock(&mutex);
  const int result = pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &deadline);
  pthread_mutex_unlock(&mutex);
  clock_gettime(CLOCK_MONOTONIC, &end);
  const double waited = (end.tv_sec - begin.tv_sec) * 1e3 + (end.tv_nsec - begin.tv_nsec) / 1e6;
  return result == ETIMEDOUT && waited > milliseconds - 1 && waited < milliseconds + 2000;
}

static bool closes_files(const char* shell) {
  const int open_file = dup2(open("/dev/null", O_RDONLY), 1500);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (posix_spawn_file_actions_addclosefrom_np(&actions, 3) != 0) {
    return false;
  }
  const std::string script = "test ! -e /proc/self/fd/" + std::to_string(open_file < 0 ? 3 : open_file);
  const char* arguments[] = {shell, "-c", script.c_str(), nullptr};
  pid_t child;
  int status = 1;
  return posix_spawn(&child, shell, &actions, nullptr, const_cast<char**>(arguments), nullptr) == 0 &&
         waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char** argv) {
  struct stat file, same;
  void* volatile block = malloc(50 << 20);
  const struct mallinfo2 heap = mallinfo2();
  free(block);
  bool thread_catches = false;
  std::thread([&] { thread_catches = throws_and_catches(5); }).join();
  return argc != 2                                                              ? 1
         : made_before_main.size() != 3 || made_before_main[2] != 7             ? 2
         : !throws_and_catches(3) || !thread_catches                            ? 3
         : stat(argv[0], &file) != 0 || file.st_size < 1000                     ? 4
         : lstat(argv[0], &same) != 0 || same.st_ino != file.st_ino             ? 5
         : fstatat(AT_FDCWD, argv[0], &same, 0) != 0 || same.st_ino != file.st_ino ? 6
         : gettid() != getpid()                                                 ? 7
         : arc4random() == arc4random() && arc4random() == arc4random()         ? 8
         : heap.hblkhd < (50U << 20)                                            ? 9
         : !waits_for(30) || !waits_for(990)                                    ? 10
         : !closes_files(argv[1])                                               ? 11
         : !copies_and_reads()                                                  ? 12
                                                                                : 0;
}
"""


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout


class Stubs(unittest.TestCase):
    def test_the_newest_version_that_is_allowed(self):
        found = glibc_stubs.symbols_of(LISTING, "2.28")
        self.assertEqual({name: version for name, (version, _, _) in found.items()}, {"pow": "2.2.5", "memcpy": "2.14", "environ": "2.2.5"})
        self.assertEqual(found["environ"], ("2.2.5", "object", 8))
        self.assertEqual(glibc_stubs.symbols_of(LISTING, "2.29")["pow"][0], "2.29")


class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        run(sys.executable, PORTABLE / "glibc_stubs.py", "--compiler", CXX, "--newest", "2.28", cls.folder / "stubs")
        (cls.folder / "program.cpp").write_text(PROGRAM, encoding="utf-8")
        run(CXX, "-O1", "-c", cls.folder / "program.cpp", "-o", cls.folder / "program.o")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def linked(self, name, *options):
        shims, binary = self.folder / f"{name}.shims.o", self.folder / name
        run(CXX, "-x", "c", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", *options, "-c", PORTABLE / "glibc_shims.c", "-o", shims)
        run(CXX, shims, self.folder / "program.o", "-o", binary, f"-L{self.folder / 'stubs'}", "-static-libstdc++", "-static-libgcc",
            "-Wl,--wrap=__libc_start_main", "-Wl,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2")
        return binary

    def test_it_asks_for_no_newer_version_and_for_glibc_alone(self):
        binary = self.linked("newer")
        versions = re.findall(r"GLIBC_([0-9.]+)", run("objdump", "-T", binary))
        self.assertLessEqual(max(map(glibc_stubs.version_key, versions)), (2, 28))
        for name in re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", binary)):
            self.assertRegex(name, r"^(lib(c|m|pthread|dl)\.so\.\d|ld-linux.*)$")

    def test_what_this_glibc_has_is_used(self):
        run(self.linked("newer"), "/bin/sh")

    def test_what_an_older_glibc_lacks_is_done_without(self):
        run(self.linked("older", "-Ddlsym=no_symbol"), "/bin/sh")


if __name__ == "__main__":
    unittest.main()
