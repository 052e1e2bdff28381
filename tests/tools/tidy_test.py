#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/tidy.py on small generated trees: every check fails when it must, and every listing finds its example."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import tidy  # noqa: E402

DEPS = '[rooms]\nbase = []\nkv = []\nwire = ["kv"]\nsched = ["wire", "kv"]\nrunner = ["kv", "wire"]\nserver = ["wire"]\ncli = ["*"]\n'
CMAKE = (
    "# warprow_room(NAME runner DEPS sched)\n"
    "warprow_room(NAME base LIBS fmt::fmt)\nwarprow_room(NAME kv)\nwarprow_room(NAME wire DEPS kv)\n"
    "warprow_room(NAME sched DEPS wire kv LIBS json::json)\nwarprow_room(NAME runner DEPS kv wire)\n"
)


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("tools/deps.toml", DEPS)
        self.write("src/CMakeLists.txt", CMAKE)
        self.write("src/base/math.h", "#pragma once\n")
        self.write("src/kv/spec.h", '#pragma once\n#include "base/math.h"\n')
        self.write("src/wire/output.h", '#pragma once\n#include "kv/spec.h"\n')
        self.write("src/runner/rows.cpp", '#include "wire/output.h"\n#include <vector>\n')

    def write(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def sources(self):
        return tidy.read_sources(self.root)

    def failures(self):
        return tidy.failures(self.root, self.sources())

    def assert_one_failure(self, *words):
        found = self.failures()
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])


class FailingTest(Tree):
    def test_a_good_tree_has_no_failure(self):
        self.assertEqual(self.failures(), [])

    def test_a_retired_word(self):
        good = "// weights are weighted; a weight of 3\nint outweighs = 0;\n"
        self.write("src/base/words.h", "#pragma once\n" + good)
        self.assertEqual(self.failures(), [])
        for bad in ("int skinny_plan;", "struct GraphWish;", "// by the copy engine", "float weigh(int);", "int kSkinnyRows;"):
            self.write("src/base/words.h", f"#pragma once\n{bad}\n")
            self.assert_one_failure("src/base/words.h:2", "is retired")

    def test_an_unlisted_edge(self):
        self.write("src/sched/plan.h", "#pragma once\n")
        self.write("src/runner/step.cpp", '\n#include "sched/plan.h"\n')
        self.assert_one_failure("src/runner/step.cpp:2", "runner may not include sched")

    def test_an_unlisted_edge_with_angle_brackets(self):
        self.write("src/kv/pool.cpp", "#include <wire/output.h>\n")
        self.assert_one_failure("kv may not include wire")

    def test_cli_may_include_anything_and_a_comment_is_no_include(self):
        self.write("src/cli/main.cpp", '#include "runner/rows.h"\n')
        self.write("src/runner/rows.h", '#pragma once\n// #include "sched/plan.h"\n/*\n#include "cli/main.h"\n*/\n')
        self.assertEqual(self.failures(), [])

    def test_a_cycle_in_the_table(self):
        self.write("tools/deps.toml", DEPS.replace("kv = []", 'kv = ["sched"]'))
        self.write("src/CMakeLists.txt", CMAKE.replace("NAME kv)", "NAME kv DEPS sched)"))
        self.assert_one_failure("cycle", "kv -> sched")

    def test_the_table_lists_something_that_is_no_room(self):
        self.write("tools/deps.toml", DEPS.replace('server = ["wire"]', 'server = ["wires"]'))
        self.assert_one_failure("wires, which is no room")

    def test_cmake_links_more_than_the_table(self):
        self.write("src/CMakeLists.txt", CMAKE.replace("NAME runner DEPS kv wire)", "NAME runner DEPS kv wire sched)"))
        self.assert_one_failure("runner links sched")

    def test_cmake_links_less_than_the_table(self):
        self.write("src/CMakeLists.txt", CMAKE.replace("NAME runner DEPS kv wire)", "NAME runner DEPS kv)"))
        self.assert_one_failure("runner does not link wire")

    def test_cmake_lacks_a_room_that_has_code(self):
        self.write("src/server/http.cpp", '#include "wire/output.h"\n')
        self.assert_one_failure("room server has code")

    def test_cmake_has_a_room_that_the_table_lacks(self):
        self.write("src/CMakeLists.txt", CMAKE + "warprow_room(NAME attic)\n")
        self.assert_one_failure("room attic")

    def test_a_file_in_no_room(self):
        self.write("src/attic/old.h", "#pragma once\n")
        self.assert_one_failure("src/attic/old.h", "no room")

    def test_includes_beside_the_file(self):
        self.write("src/runner/rows.h", "#pragma once\n")
        self.write("src/runner/step.cpp", '#include "rows.h"\n')
        self.assert_one_failure("src/runner/step.cpp:1", "not relative to src/")

    def test_includes_upwards(self):
        self.write("src/runner/step.cpp", '#include "../kv/spec.h"\n')
        self.assert_one_failure("not relative to src/")

    def test_an_include_that_does_not_exist(self):
        self.write("src/runner/step.cpp", '#include "wire/gone.h"\n')
        self.assert_one_failure("does not exist")

    def test_tests_include_relative_to_the_checkout_too(self):
        self.write("tests/runner/toy.h", "#pragma once\n")
        self.write("tests/runner/rows_test.cpp", '#include "runner/rows.h"\n#include "tests/runner/toy.h"\n')
        self.write("src/runner/rows.h", "#pragma once\n")
        self.assertEqual(self.failures(), [])

    def test_a_local_name_of_two_files_of_a_unity_room(self):
        self.write("src/CMakeLists.txt", CMAKE + "set(unity_rooms kv runner)\n")
        body = "namespace warprow {{\nnamespace {{\n{}\n}}\nint seen() {{ return 1; }}\n}}\n"
        self.write("src/runner/one.cpp", body.format("int size_of(int a) { return a; }\nconstexpr int kMost = 3;\nusing Json = int;"))
        self.write("src/runner/two.cpp", body.format("struct Size {};\nusing Json = int;"))
        self.write("src/wire/three.cpp", body.format("constexpr int kMost = 4;"))
        self.assertEqual(self.failures(), [])
        self.write("src/runner/two.cpp", body.format("int size_of(long a) { return 0; }"))
        self.assert_one_failure("src/runner/two.cpp: src/runner/one.cpp has a local size_of too")
        self.write("src/runner/two.cpp", body.format("constexpr int kMost[] = {1};"))
        self.assert_one_failure("has a local kMost too")

    def test_a_local_name_of_two_files_of_tests(self):
        body = "namespace warprow {{\nnamespace {{\n{}\nTEST(Runner, {}) {{}}\n}}\n}}\n"
        self.write("tests/runner/one_test.cpp", body.format("int rows() { return 1; }", "One"))
        self.write("tests/runner/two_test.cpp", body.format("int lanes() { return 1; }", "Two"))
        self.write("tests/kv/three_test.cpp", body.format("int rows() { return 1; }", "Three"))
        self.write("tests/support/four.cpp", body.format("int rows() { return 1; }", "Four"))
        self.assertEqual(self.failures(), [])
        self.write("tests/runner/two_test.cpp", body.format("int rows() { return 2; }", "Two"))
        self.assert_one_failure("tests/runner/two_test.cpp: tests/runner/one_test.cpp has a local rows too")

    def test_the_exit_status(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(tidy.main(["--root", str(self.root)]), 0)
            self.write("src/kv/pool.cpp", '#include "wire/output.h"\n')
            self.assertEqual(tidy.main(["--root", str(self.root), "--quiet"]), 1)
        self.assertIn("error: src/kv/pool.cpp:1", out.getvalue())


class LookingTest(Tree):
    def test_functions_are_measured(self):
        body = "\n".join(f"  call({i});" for i in range(48))
        self.write(
            "src/kv/pool.cpp",
            '#include "kv/spec.h"\n#define X() {\nnamespace warprow {\nstruct A {\n  int b() const { return 1; }\n};\n\n'
            f'// A comment with a brace {{\nint long_one(int a,\n             int b) {{\n  const char* s = "}}";\n{body}\n}}\n'
            "int table[] = {1, 2};\n}  // namespace warprow\n",
        )
        source = next(source for source in self.sources() if source.path.endswith("pool.cpp"))
        found = {function.name: (function.line, function.lines) for function in tidy.functions_in(source)}
        self.assertEqual(found, {"b": (5, 1), "long_one": (9, 52)})
        self.assertEqual(tidy.large_functions([source]), ["src/kv/pool.cpp:9: long_one: 52 lines"])

    def test_large_files(self):
        self.write("src/kv/pool.cpp", "\n" * 401)
        self.write("src/wire/output.h", "\n" * 400)
        self.assertEqual(tidy.large_files(self.sources()), ["src/kv/pool.cpp: 401 lines"])
        self.write("src/wire/more.h", "\n" * 401)
        self.assertIn("src/wire: 801 lines in all", tidy.large_files(self.sources())[-1])

    def test_stray_words(self):
        self.write("src/runner/model_runner.cpp", "// grammar in a comment\nint apply_grammar();\nkernel<<<1, 2>>>();\n")
        self.write("src/kv/pool.cpp", 'auto* p = new int;\nstd::shared_ptr<int> s;\nauto e = getenv("X");  // new\nchar c[] = "new";\n')
        self.write("src/config/env.cpp", 'getenv("X");\n')
        self.write("src/engine/engine_loop.cpp", "// sleep in a comment\nint stats();\n")
        self.assertEqual(
            [note.split(": ")[0:2] for note in tidy.stray_words(self.sources())],
            [
                ["src/engine/engine_loop.cpp:2", "stats"],
                ["src/kv/pool.cpp:1", "new"],
                ["src/kv/pool.cpp:2", "shared_ptr"],
                ["src/kv/pool.cpp:3", "getenv"],
                ["src/runner/model_runner.cpp:2", "grammar"],
                ["src/runner/model_runner.cpp:3", "<<<"],
            ],
        )

    def test_unused_headers_names_and_tests(self):
        self.write("src/kv/block_utils.h", "#pragma once\n")
        self.write("tests/runner/rows_test.cpp", "\n")
        sources = self.sources()
        self.assertEqual(tidy.dead_headers(sources), ["src/kv/block_utils.h: nobody includes it"])
        self.assertEqual(tidy.vague_names(sources), ["src/kv/block_utils.h: says no noun"])
        self.assertEqual(tidy.missing_tests(sources), ["src/base: no tests", "src/kv: no tests", "src/wire: no tests"])


class ThisTreeTest(unittest.TestCase):
    def test_this_tree_keeps_its_own_rules(self):
        self.assertEqual(tidy.failures(ROOT, tidy.read_sources(ROOT)), [])


if __name__ == "__main__":
    unittest.main()
