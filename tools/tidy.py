#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the structure and the words of the tree. Failures give exit status 1; everything else is listed for review.

Fails on:  an include between rooms that tools/deps.toml does not list; a cycle in deps.toml; deps.toml and
           src/CMakeLists.txt disagreeing; an include of ours that is not relative to src/ (or to the checkout); a word
           that STYLE.md's glossary has retired; a name in the anonymous namespaces of two files that a unity build
           compiles as one.
Prints:    large files and functions, kernel launches outside the launcher, stray getenv, new and shared_ptr, backend
           conditionals outside device/, feature nouns in the model runner and the engine loop, headers nobody
           includes, missing tests.

    tools/tidy.py [--root DIR] [--quiet]        --quiet prints only what fails
"""

import argparse
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CODE_SUFFIXES = {".h", ".cpp", ".inl", ".cu", ".cuh"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
ROOM_CALL = re.compile(r"^\s*warprow_room\(\s*NAME\s+(\w+)([^)]*)\)", re.MULTILINE)

# Lines at which to look again: a host file or function, and one that holds kernels.
HOST_FILE, KERNEL_FILE = 400, 500
HOST_FUNCTION, KERNEL_FUNCTION = 40, 100
WIRE_TOTAL = 800
# Words that STYLE.md's glossary has replaced. A word matches alone or as a part of an identifier, in any case.
RETIRED_WORDS = {
    "weigh": "online softmax, or the sum of masses",
    "wish": "options or policy",
    "errand": "task",
    "bring_tiles": "load_tiles",
    "leave_sums": "store_partial_sums",
    "skinny": "sm80_bf16_gemm_small_m",
    "copy engine": "TMA",
    "matrix unit": "tensor cores or wgmma",
}
UNITY_ROOMS = re.compile(r"^set\(unity_rooms ([\w ]+)\)", re.MULTILINE)
NO_UNITY_TESTS = ("tests/cross", "tests/fuzz", "tests/support")
GTEST_NAME = re.compile(r"(?:TYPED_)?TEST(?:_[FP]|_SUITE(?:_P)?)?|INSTANTIATE_\w+|MATCHER(?:_P\d?)?|PrintTo")
TYPE_HEAD = re.compile(r"(?:class|struct|union|enum(?:\s+class)?)\s+(\w+)")
MIRRORED_ROOMS = ("base", "kv", "sched", "wire", "runner")


@dataclass(frozen=True)
class Include:
    line: int
    target: str
    quoted: bool


@dataclass(frozen=True)
class Source:
    """One C++ file; path is relative to the checkout, with forward slashes."""

    path: str
    text: str

    @property
    def room(self) -> str | None:
        parts = self.path.split("/")
        return parts[1] if parts[0] == "src" and len(parts) > 2 else None

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def is_kernel(self) -> bool:
        return self.path.startswith("src/kernels/") or self.path.endswith((".cu", ".cuh"))

    @cached_property
    def code(self) -> str:
        return blank_comments_and_strings(self.text)

    @cached_property
    def includes(self) -> list[Include]:
        # Offsets in code and text agree, so an include inside a comment is recognised by its blanked '#'.
        found = []
        for match in INCLUDE.finditer(self.text):
            if "#" in self.code[match.start() : match.end()]:
                line = self.text.count("\n", 0, match.start()) + 1
                found.append(Include(line, match.group(2), match.group(1) == '"'))
        return found


def blank_comments_and_strings(text: str) -> str:
    """Replaces comments and literals by spaces, keeping length and lines."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])*\'',
        re.DOTALL,
    )
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


def read_sources(root: Path) -> list[Source]:
    sources = []
    for top in ("src", "tests", "bench"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in CODE_SUFFIXES and path.is_file():
                sources.append(Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")))
    return sources


# --- What fails ----------------------------------------------------------------------------------------------------


def read_rooms(root: Path) -> dict[str, list[str]]:
    return tomllib.loads((root / "tools/deps.toml").read_text(encoding="utf-8"))["rooms"]


def cycle_in(rooms: dict[str, list[str]]) -> list[str] | None:
    """The first cycle as [a, b, a], or None."""
    done: set[str] = set()

    def visit(room: str, trail: list[str]) -> list[str] | None:
        if room in trail:
            return trail[trail.index(room) :] + [room]
        if room in done:
            return None
        for dep in rooms.get(room, []):
            if found := visit(dep, trail + [room]):
                return found
        done.add(room)
        return None

    for room in rooms:
        if found := visit(room, []):
            return found
    return None


def check_table(rooms: dict[str, list[str]]) -> list[str]:
    problems = []
    for room, deps in rooms.items():
        for dep in deps:
            if dep != "*" and dep not in rooms:
                problems.append(f"tools/deps.toml: {room} lists {dep}, which is no room")
    if cycle := cycle_in(rooms):
        problems.append(f"tools/deps.toml: cycle {' -> '.join(cycle)}")
    return problems


def check_cmake(rooms: dict[str, list[str]], sources: list[Source], cmake: str) -> list[str]:
    """Compares CMake with the table. Rooms without code may be absent from CMake."""
    problems = []
    calls = {}
    for match in ROOM_CALL.finditer(cmake):
        words = match.group(2).split()
        keyword, deps = None, set()
        for word in words:
            if word in ("DEPS", "LIBS"):
                keyword = word
            elif keyword == "DEPS":
                deps.add(word)
        calls[match.group(1)] = deps
    for room in sorted({source.room for source in sources if source.path.endswith(".cpp")} - {None, "cli"}):
        if room not in calls:
            problems.append(f"src/CMakeLists.txt: room {room} has code but no warprow_room()")
    for room, deps in calls.items():
        if room not in rooms:
            problems.append(f"src/CMakeLists.txt: room {room} is not in tools/deps.toml")
            continue
        allowed = set(rooms[room])
        for dep in sorted(deps - allowed):
            problems.append(f"src/CMakeLists.txt: {room} links {dep}, which tools/deps.toml does not list")
        for dep in sorted((allowed & calls.keys()) - deps):
            problems.append(f"src/CMakeLists.txt: {room} does not link {dep}, which tools/deps.toml lists")
    return problems


def check_includes(root: Path, rooms: dict[str, list[str]], sources: list[Source]) -> list[str]:
    problems = []
    known = {source.path for source in sources}
    for source in sources:
        if source.path.startswith("src/") and source.room not in rooms:
            problems.append(f"{source.path}: lies in no room of tools/deps.toml")
            continue
        for include in source.includes:
            where = f"{source.path}:{include.line}"
            target_room = include.target.split("/")[0]
            is_ours = f"src/{include.target}" in known
            if include.quoted and not is_ours:
                beside = (root / source.path).parent / include.target
                if ".." in include.target.split("/") or (beside.is_file() and include.target not in known):
                    problems.append(f'{where}: "{include.target}" is not relative to src/')
                elif target_room in rooms:
                    problems.append(f'{where}: "{include.target}" does not exist')
                continue
            if not is_ours or source.room is None or target_room in (source.room, "base"):
                continue
            allowed = rooms[source.room]
            if "*" not in allowed and target_room not in allowed:
                problems.append(f"{where}: {source.room} may not include {target_room} (tools/deps.toml)")
    return problems


def check_words(sources: list[Source]) -> list[str]:
    # "weighted" and "weight" are not matched; "skinny_plan" and "GraphWish" are.
    retired = re.compile("|".join(rf"(?:(?<![a-z])|(?<=[a-z])(?=[A-Z]))(?i:{word})(?:es|s)?(?![a-z])" for word in RETIRED_WORDS))
    problems = []
    for source in sources:
        for match in retired.finditer(source.text):
            line = source.text.count("\n", 0, match.start()) + 1
            word = next(word for word in RETIRED_WORDS if word in match.group(0).lower())
            problems.append(f"{source.path}:{line}: '{match.group(0)}' is retired: {RETIRED_WORDS[word]}")
    return problems


def blank_directives(code: str) -> str:
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), code, flags=re.MULTILINE)


def local_names(source: Source) -> set[str]:
    """Functions, variables and types of the anonymous namespaces; not aliases, which may be repeated if they agree."""
    code, names, scopes, start = blank_directives(source.code), set(), [], 0
    for match in re.finditer(r"[{};]", code):
        head = re.sub(r"^template\s*<.*?>\s*(?=\w)", "", code[start : match.start()].strip(), flags=re.DOTALL)
        start = match.end()
        is_scope = re.match(r"(?:inline\s+)?namespace\b", head) is not None
        is_local = "anonymous" in scopes and "other" not in scopes
        if is_local and head and match.group(0) != "}" and not is_scope and not re.match(r"using\b|static_assert\b", head):
            declared = head if "operator" in head else head.split("=")[0]
            if name := TYPE_HEAD.match(head) or re.search(r"([^\W\d]\w*)\s*\(", declared) or re.search(r"([^\W\d]\w*)\s*(?:\[[^\]]*\]\s*)*$", declared):
                names.add(name.group(1))
        if match.group(0) == "{":
            scopes.append("other" if not is_scope else "anonymous" if head == "namespace" else "named")
        elif match.group(0) == "}" and scopes:
            scopes.pop()
    return names


def check_local_names(sources: list[Source], cmake: str) -> list[str]:
    # An overload in another file can be the better match of a call, and no compiler says so.
    rooms = {f"src/{room}" for room in match.group(1).split()} if (match := UNITY_ROOMS.search(cmake)) else set()
    homes: dict[tuple[str, str], str] = {}
    problems = []
    for source in sources:
        folder = "/".join(source.path.split("/")[:2])
        is_unity = folder in rooms or (folder.startswith("tests/") and folder not in NO_UNITY_TESTS)
        if is_unity and source.path.endswith(".cpp") and source.path != "src/cli/main.cpp":
            for name in sorted(name for name in local_names(source) if not GTEST_NAME.fullmatch(name)):
                if (home := homes.setdefault((folder, name), source.path)) != source.path:
                    problems.append(f"{source.path}: {home} has a local {name} too, and a unity build compiles them as one")
    return problems


def failures(root: Path, sources: list[Source]) -> list[str]:
    rooms = read_rooms(root)
    cmake = (root / "src/CMakeLists.txt").read_text(encoding="utf-8")
    return check_table(rooms) + check_cmake(rooms, sources, cmake) + check_includes(root, rooms, sources) + check_words(sources) + check_local_names(sources, cmake)


# --- Listed for review -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    path: str
    line: int
    name: str
    lines: int


def functions_in(source: Source) -> list[Function]:
    """Outermost function bodies by brace matching, which is good enough to find the long ones."""
    code = blank_directives(source.code)
    found, open_scopes = [], []  # open_scopes: (is a function, its name, the line of its head)
    head_start, head_line, line = 0, 1, 1
    for match in re.finditer(r"[{};\n]", code):
        char = match.group(0)
        if char == "\n":
            line += 1
            if not code[head_start : match.start()].strip():
                head_line = line
            continue
        if char == "{":
            head = code[head_start : match.start()].strip()
            inside = any(scope[0] for scope in open_scopes)
            name = re.search(r"(~?[\w:]+|operator\S+)\s*\(", head)
            is_scope = re.match(r"(?:template\s*<[^{]*>\s*)?(?:inline\s+)?(?:namespace|class|struct|union|enum|extern)\b", head)
            is_function = not inside and name is not None and not is_scope and not head.endswith("=")
            open_scopes.append((is_function, name.group(1) if name else "", head_line))
        elif char == "}" and open_scopes:
            is_function, name_text, start = open_scopes.pop()
            if is_function:
                found.append(Function(source.path, start, name_text, line - start + 1))
        head_start, head_line = match.end(), line
    return found


def large_files(sources: list[Source]) -> list[str]:
    notes = []
    for source in sorted(sources, key=lambda item: -item.lines):
        if source.lines > (KERNEL_FILE if source.is_kernel else HOST_FILE):
            notes.append(f"{source.path}: {source.lines} lines")
    wire = sum(source.lines for source in sources if source.room == "wire")
    if wire > WIRE_TOTAL:
        notes.append(f"src/wire: {wire} lines in all; it draws things that belong elsewhere")
    return notes


def large_functions(sources: list[Source]) -> list[str]:
    found = []
    for source in sources:
        limit = KERNEL_FUNCTION if source.is_kernel else HOST_FUNCTION
        found += [function for function in functions_in(source) if function.lines > limit]
    found.sort(key=lambda function: -function.lines)
    return [f"{function.path}:{function.line}: {function.name}: {function.lines} lines" for function in found]


# What to look for, where it is allowed, and why it deserves a review.
PATTERNS = (
    (r"<<<", r"^src/device/cuda/launch\.cuh$", "kernel launch outside device/cuda/launch.cuh"),
    (r"\b(?:secure_)?getenv\b", r"^src/(?:config/env|files/cache_paths)\.\w+$|^tests/", "getenv outside config/env.cpp"),
    (r"\bnew\b(?!\s*\()", r"^tests/", "new"),
    (r"\bshared_ptr\b", r"^src/server/|^tests/", "shared_ptr"),
    (r"\bWARPROW_CUDA\b", r"^src/device/|^tests/", "backend conditional outside device/"),
)


def stray_words(sources: list[Source]) -> list[str]:
    notes = []
    for source in sources:
        patterns = [(pattern, why) for pattern, home, why in PATTERNS if not re.search(home, source.path)]
        if source.path == "src/runner/model_runner.cpp":
            patterns.append((r"(?i)lora|speculat|\bspec_|grammar|image|pooling", "a feature's noun in the model runner"))
        if source.path in ("src/engine/engine_loop.h", "src/engine/engine_loop.cpp"):
            patterns.append((r"(?i)grammar|stats|sleep", "a feature's noun in the engine loop"))
        if source.path.startswith("src/runner/ops/") and source.path.endswith(".h"):
            patterns.append((r"__CUDA_ARCH__|__CUDACC__|\bstd::(?:sort|copy|fill|transform|accumulate)", "not in a shared op"))
        for number, line in enumerate(source.code.split("\n"), 1):
            for pattern, why in patterns:
                if not line.lstrip().startswith("#include") and (match := re.search(pattern, line)):
                    notes.append(f"{source.path}:{number}: {match.group(0)}: {why}")
    return notes


def dead_headers(sources: list[Source]) -> list[str]:
    included = {include.target for source in sources for include in source.includes}
    # Files included by stubs that CMake writes: every *_loops.inl, and the kernels that the file names.
    stubs = (Path(__file__).resolve().parent.parent / "cmake/stubs.cmake").read_text(encoding="utf-8")
    included |= {f"kernels/{kernel}" for kernel in re.findall(r"\S+\.cuh\b", stubs)}
    headers = [source.path for source in sources if source.room and source.path.endswith((".h", ".inl", ".cuh"))]
    headers = [path for path in headers if not path.endswith("_loops.inl")]
    return [f"{path}: nobody includes it" for path in headers if path.removeprefix("src/") not in included]


def missing_tests(sources: list[Source]) -> list[str]:
    tests = {source.path for source in sources if source.path.startswith("tests/")}
    rooms = sorted({source.room for source in sources if source.room})
    notes = [f"src/{room}: no tests" for room in rooms if not any(path.startswith(f"tests/{room}/") for path in tests)]
    for source in sources:
        if source.room in MIRRORED_ROOMS and source.path.endswith(".cpp"):
            mirror = f"tests/{source.path.removeprefix('src/').removesuffix('.cpp')}_test.cpp"
            if mirror not in tests:
                notes.append(f"{source.path}: no {mirror}")
    return notes


def vague_names(sources: list[Source]) -> list[str]:
    vague = re.compile(r"(?:^|_)(?:utils?|helpers?|misc|common\d*|impl|stuff)(?:_|$)")
    return [f"{source.path}: says no noun" for source in sources if source.room and vague.search(Path(source.path).stem)]


SECTIONS = (
    ("Large files", large_files),
    ("Large functions", large_functions),
    ("Out of place", stray_words),
    ("Vague names", vague_names),
    ("Unused headers", dead_headers),
    ("Tests to think of", missing_tests),
)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--quiet", action="store_true", help="print only what fails")
    args = parser.parse_args(argv)
    sources = read_sources(args.root)
    if not args.quiet:
        for title, look in SECTIONS:
            notes = look(sources)
            if notes:
                print(f"{title} ({len(notes)}), for the eye:")
                print("\n".join(f"  {note}" for note in notes))
    problems = failures(args.root, sources)
    for problem in problems:
        print(f"error: {problem}")
    print(f"tidy: {len(sources)} files, {len(problems)} errors")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
