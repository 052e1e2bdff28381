#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The library's ABI against abi.json: exported symbols, numbers of the header, sizes and offsets of structs.

    abi_test.py [--write]     --write: keeps what is there now; a change that is no addition raises WARPROW_ABI_VERSION

Also compares the structs and functions of python/warprow/_library.py. Environment: WARPROW_BUILD, the build folder.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HEADER = ROOT / "include/warprow.h"
KEPT = Path(__file__).resolve().parent / "abi.json"
LIBRARY = Path(os.environ.get("WARPROW_BUILD", ROOT / "build/cpu-release")) / "libwarprow.so.1"
STRUCTS = ("warprow_logprob", "warprow_logprobs", "warprow_output", "warprow_row_logits")


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(line.split()[2].partition("@")[0] for line in lines if not line.endswith(" A WARPROW_1"))


def uncommented():
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)


def members(struct):
    body = re.search(rf"struct {struct} {{(.*?)}}", uncommented(), re.DOTALL).group(1)
    return re.findall(r"(\w+);", body)


def measured():
    """Numbers and layouts, as a C compiler sees the header."""
    numbers = ["WARPROW_ABI_VERSION", *re.findall(r"(WARPROW_\w+) = ", uncommented())]
    lines = [f'printf("{name} %d\\n", (int){name});' for name in numbers]
    for struct in STRUCTS:
        lines.append(f'printf("sizeof({struct}) %d\\n", (int)sizeof(struct {struct}));')
        lines += [f'printf("{struct}.{name} %d\\n", (int)offsetof(struct {struct}, {name}));' for name in members(struct)]
    source = '#include <stdio.h>\n#include "warprow.h"\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0; }\n"
    with tempfile.TemporaryDirectory(prefix="warprow-abi-") as folder:
        program = Path(folder) / "layout"
        subprocess.run(["cc", "-std=c11", f"-I{HEADER.parent}", "-x", "c", "-", "-o", program], input=source, text=True, check=True)
        output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def abi():
    return {"symbols": exported(LIBRARY), "numbers": measured()}


class AbiTest(unittest.TestCase):
    maxDiff = None

    def test_is_as_kept(self):
        self.assertEqual(json.loads(KEPT.read_text(encoding="utf-8")), abi(), "an addition? abi_test.py --write")

    def test_exports_what_the_header_declares(self):
        declared = re.findall(r"WARPROW_API [^;]*?(warprow_\w+)\(", uncommented())
        self.assertEqual(sorted(declared), exported(LIBRARY))

    def test_python_sees_the_same(self):
        os.environ["WARPROW_LIBRARY"] = str(LIBRARY)
        sys.path.insert(0, str(ROOT / "python"))
        from warprow import _library

        numbers = measured()
        self.assertEqual(sorted(_library.FUNCTIONS), exported(LIBRARY))
        self.assertEqual(_library.ABI_VERSION, numbers["WARPROW_ABI_VERSION"])
        for name in ("OK", "TIMEOUT", "DONE", "CLOSED"):
            self.assertEqual(getattr(_library, name), numbers[f"WARPROW_{name}"])
        for struct, mirror in zip(STRUCTS, (_library.Logprob, _library.Logprobs, _library.Output, _library.RowLogits)):
            self.assertEqual(ctypes.sizeof(mirror), numbers[f"sizeof({struct})"])
            self.assertEqual([name for name, _ in mirror._fields_], members(struct))
            for name, _ in mirror._fields_:
                self.assertEqual(getattr(mirror, name).offset, numbers[f"{struct}.{name}"], name)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        KEPT.write_text(json.dumps(abi(), indent=1) + "\n", encoding="utf-8")
    else:
        unittest.main(verbosity=2)
