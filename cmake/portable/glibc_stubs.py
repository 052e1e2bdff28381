#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Libraries to link against in place of the machine's glibc, so that a binary asks for no version after a given one.

    glibc_stubs.py --compiler CXX --newest 2.28 FOLDER

Each stub has a library's soname and, of every symbol, the newest version up to that one, and no code. The machine's glibc still
has those versions, since it runs old programs. What came later is not there, so its use is a link error; glibc_shims.c has what
our libraries use of that. In glibc 2.34 libpthread, libdl and librt became part of libc: their stubs are empty, but the binary
names them, because an older system finds their functions there.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

SYMBOL = re.compile(r"^\s*\d+: [0-9a-f]+\s+(\S+) (\S+)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\S+ ([^@\s]+)@@?GLIBC_([0-9.]+)$", re.MULTILINE)
EMPTY = {"pthread": "libpthread.so.0", "dl": "libdl.so.2", "rt": "librt.so.1"}


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def symbols_of(listing: str, newest: str) -> dict[str, tuple[str, str, int]]:
    """Version, type and size of each symbol, from the lines of `readelf --dyn-syms`."""
    found: dict[str, tuple[str, str, int]] = {}
    for size, kind, name, version in SYMBOL.findall(listing):
        if kind == "TLS" or version_key(version) > version_key(newest):
            continue
        if name not in found or version_key(version) > version_key(found[name][0]):
            found[name] = (version, "object" if kind == "OBJECT" else "function", int(size, 0))
    return found


def assembly(symbols: dict[str, tuple[str, str, int]]) -> str:
    lines = ['.section .note.GNU-stack,"",%progbits']
    for name, (_, kind, size) in sorted(symbols.items()):
        lines += [".bss" if kind == "object" else ".text", f".globl {name}", f".type {name}, %{kind}", f"{name}:"]
        lines += [f".size {name}, {size}", f".skip {size}"] if kind == "object" else []
    return "\n".join(lines) + "\n"


def version_script(symbols: dict[str, tuple[str, str, int]]) -> str:
    versions: dict[str, list[str]] = {}
    for name, (version, _, _) in sorted(symbols.items()):
        versions.setdefault(version, []).append(name)
    return "".join(f"GLIBC_{version} {{ {'; '.join(names)}; }};\n" for version, names in versions.items())


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_stub(compiler: str, folder: Path, soname: str, symbols: dict[str, tuple[str, str, int]]) -> None:
    source, script, target = (folder / f"{soname}{ending}" for ending in (".s", ".map", ""))
    source.write_text(assembly(symbols), encoding="utf-8")
    script.write_text(version_script(symbols), encoding="utf-8")
    options = [f"-Wl,--version-script={script}"] if symbols else []
    output_of(compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", *options, "-o", str(target), str(source))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--newest", required=True)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)

    def find(name: str) -> str:
        path = output_of(args.compiler, f"-print-file-name={name}")
        if path == name:
            raise SystemExit(f"{args.compiler} finds no {name}")
        return path

    loader = Path(re.search(r"(ld-linux\S*?\.so\.\d)", output_of("readelf", "-d", find("libc.so.6"))).group(1)).name
    for soname in ("libc.so.6", "libm.so.6", loader):
        listing = output_of("readelf", "--wide", "--dyn-syms", find(soname))
        make_stub(args.compiler, args.folder, soname, symbols_of(listing, args.newest))
    for name, soname in EMPTY.items():
        make_stub(args.compiler, args.folder, soname, {})
        (args.folder / f"lib{name}.so").write_text(f"INPUT({soname})\n", encoding="utf-8")
    (args.folder / "libm.so").write_text("INPUT(libm.so.6)\n", encoding="utf-8")
    static = find("libc_nonshared.a")  # atexit and others that each binary has a copy of
    (args.folder / "libc.so").write_text(f"INPUT(libc.so.6 {static} AS_NEEDED({loader}))\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
