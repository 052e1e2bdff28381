#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C interface as another project finds it: installed, then program.c built through pkg-config and through CMake and run.

Environment: WARPROW_BUILD, the build folder; WARPROW_E2E_MODEL, the model (smollm2). Exits 77, which ctest shows as skipped, if
the model is not on this machine.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from cli_test import MODEL, clean_environment, default_model_file  # noqa: E402

BUILD = os.environ["WARPROW_BUILD"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
set(CMAKE_C_STANDARD 11)
find_package(warprow 0.1 REQUIRED)
add_executable(program {source})
target_link_libraries(program PRIVATE warprow::warprow)
"""


def output_of(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._dir = tempfile.TemporaryDirectory(prefix="warprow-capi-")
        cls.addClassCleanup(cls._dir.cleanup)
        cls.dir = Path(cls._dir.name)
        cls.prefix = cls.dir / "prefix"
        output_of("cmake", "--install", BUILD, "--prefix", cls.prefix, "--component", "c_interface")
        answer = output_of(cls.prefix / "bin/warprow", "generate", MODEL, "-p", "The capital of France is", "--temperature", "0",
                           "--max-tokens", "8", "--output", "json", "--kv-cache-memory-bytes", "64MiB", env=clean_environment())
        cls.expected = json.loads(answer)["choices"][0]["token_ids"]

    def check_program(self, program):
        text = output_of(program, MODEL, env=clean_environment(LD_LIBRARY_PATH=str(self.prefix / "lib")))
        self.assertEqual([int(token) for token in text.split(",")], self.expected)

    def test_pkg_config(self):
        env = {**os.environ, "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}
        self.assertEqual(output_of("pkg-config", "--modversion", "warprow", env=env).strip(), "0.1.0")
        flags = output_of("pkg-config", "--cflags", "--libs", "warprow", env=env).split()
        program = self.dir / "program"
        output_of("cc", "-std=c11", "-D_DEFAULT_SOURCE", *WARNINGS, HERE / "program.c", *flags, "-o", program)
        self.check_program(program)

    def test_cmake(self):
        source, build = self.dir / "user", self.dir / "user-build"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(PROJECT.format(source=HERE / "program.c"), encoding="utf-8")
        output_of("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        output_of("cmake", "--build", build)
        self.check_program(build / "program")

    def test_example(self):
        env = {**os.environ, "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}
        flags = output_of("pkg-config", "--cflags", "--libs", "warprow", env=env).split()
        program = self.dir / "generate"
        output_of("cc", *WARNINGS, HERE.parent.parent / "examples/c/generate.c", *flags, "-o", program)
        env = clean_environment(LD_LIBRARY_PATH=str(self.prefix / "lib"))
        body = '{"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 5}'
        self.assertEqual(output_of(program, MODEL, body, env=env), "Hello! How can I\n")
        failed = subprocess.run([program, MODEL, '{"colour": 1, "prompt": "x"}'], env=env, capture_output=True, text=True)
        self.assertEqual((failed.returncode, failed.stderr), (1, "request: colour: no such field\n"))

    def test_header_is_cpp_too(self):
        source = self.dir / "header.cpp"
        source.write_text("#include <warprow.h>\nint main() { return warprow_abi_version() == 0; }\n", encoding="utf-8")
        output_of("c++", "-std=c++11", *WARNINGS, f"-I{self.prefix}/include", "-fsyntax-only", source)


if __name__ == "__main__":
    if not os.path.exists(default_model_file()):
        print(f"skipped: {default_model_file()} is not there", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
