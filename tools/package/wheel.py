#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A wheel of python/warprow with the library and the binary of a portable build.

    wheel.py --version 0.1.0 --glibc 2.28 --flavour cpu --licenses FOLDER BUILD DIST

The package calls the library through ctypes, so one wheel serves every Python that it is written for. The same inputs make the
same bytes. Prints the wheel's path.
"""

import argparse
import base64
import hashlib
import os
import platform
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = "3.10"
SUMMARY = "Inference engine for language models, with vLLM's Python interface"


def tag_of(glibc: str) -> str:
    return f"py3-none-manylinux_{glibc.replace('.', '_')}_{platform.machine()}"


def metadata(version: str, licenses: list[Path]) -> str:
    lines = ["Metadata-Version: 2.4", "Name: warprow", f"Version: {version}", f"Summary: {SUMMARY}", f"Requires-Python: >={PYTHON}",
             "License-Expression: Apache-2.0"]
    lines += [f"License-File: {path.name}" for path in licenses]
    lines += ["Provides-Extra: progress", "Requires-Dist: tqdm; extra == 'progress'", "Description-Content-Type: text/markdown", ""]
    return "\n".join(lines) + "\n" + (ROOT / "python/README.md").read_text(encoding="utf-8")


class Wheel:
    """A zip file with the hash of every member in its RECORD."""

    def __init__(self, path: Path, info: str) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self._info = info
        self._record: list[str] = []
        self._time = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315619200))[:6]  # zip begins in 1980

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        member = zipfile.ZipInfo(name, self._time)
        member.external_attr = (0o100000 | mode) << 16
        member.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(member, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(data)}")

    def close(self) -> None:
        name = f"{self._info}/RECORD"
        self.add(name, "\n".join([*self._record, f"{name},,", ""]).encode())
        self._zip.close()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--glibc", required=True)
    parser.add_argument("--flavour", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--licenses", type=Path, required=True)
    parser.add_argument("build", type=Path)
    parser.add_argument("dist", type=Path)
    args = parser.parse_args(argv)

    version = args.version + ("+cuda" if args.flavour == "cuda" else "")
    tag, info = tag_of(args.glibc), f"warprow-{version}.dist-info"
    path = args.dist / f"warprow-{version}-{tag}.whl"
    wheel = Wheel(path, info)
    package = ROOT / "python/warprow"
    for source in sorted(package.rglob("*")):
        if source.suffix in (".py", ".pyi") or source.name == "py.typed":
            wheel.add(f"warprow/{source.relative_to(package)}", source.read_bytes())
    wheel.add("warprow/lib/libwarprow.so.1", (args.build / "libwarprow.so.1").read_bytes(), 0o755)
    wheel.add("warprow/bin/warprow", (args.build / "warprow").read_bytes(), 0o755)
    licenses = sorted(path for path in args.licenses.iterdir() if path.is_file())
    for source in licenses:
        wheel.add(f"{info}/licenses/{source.name}", source.read_bytes())
    wheel.add(f"{info}/METADATA", metadata(version, licenses).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: warprow\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nwarprow = warprow.__main__:main\n")
    wheel.close()
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
