#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports the times of a .ci/run: parts, stages and their steps, the slowest tests, the slowest compiles, and failures.

    .ci/times.py [CHECKOUT]

Reads build/logs/{parts.tsv,steps.tsv,tests.xml,stages.xml}, which .ci/run writes, and build/*/.ninja_log. Missing files
are skipped. A compile that hits the cache takes no time, so it is not among the slowest.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

NUM_TESTS = 10
NUM_COMPILES = 20
LEAST_STEP = 5  # seconds


def read_rows(file):
    """[(seconds, name)] of a .tsv file."""
    if not file.exists():
        return []
    rows = (line.split("\t", 1) for line in file.read_text().splitlines())
    return [(float(seconds), name) for seconds, name in rows]


def read_junit(file):
    """[(seconds, name, status)] of a file of ctest --output-junit."""
    if not file.exists():
        return []
    cases = ElementTree.parse(file).getroot().iter("testcase")
    return [(float(case.get("time", 0)), case.get("name"), case.get("status")) for case in cases]


def read_compiles(build):
    """[(seconds, "PRESET: OBJECT")] of every object file's last compile."""
    compiles = {}
    for log in sorted(build.glob("*/.ninja_log")):
        for line in log.read_text().splitlines():
            fields = line.split("\t")
            if len(fields) == 5 and fields[3].endswith(".o"):
                source = fields[3].split(".dir/", 1)[-1].removesuffix(".o")
                compiles[f"{log.parent.name}: {source}"] = (int(fields[1]) - int(fields[0])) / 1000
    return [(seconds, name) for name, seconds in compiles.items()]


def clock(seconds):
    return f"{int(seconds) // 60:4d}:{int(seconds) % 60:02d}"


def show(title, rows):
    if rows:
        print(f"\n{title}")
        for seconds, name in rows:
            print(f"  {clock(seconds)}  {name}")


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    logs = root / "build" / "logs"
    parts = read_rows(logs / "parts.tsv")
    stages = read_junit(logs / "stages.xml")
    tests = read_junit(logs / "tests.xml")
    show("Where the time went (minutes:seconds)", [*parts, (sum(seconds for seconds, _ in parts), "in all")])
    show("Stages", [(seconds, name) for seconds, name, _ in stages])
    show(f"Steps of at least {LEAST_STEP} s", [row for row in read_rows(logs / "steps.tsv") if row[0] >= LEAST_STEP])
    show("The slowest tests", sorted(((seconds, name) for seconds, name, _ in tests), reverse=True)[:NUM_TESTS])
    compiles = read_compiles(root / "build")
    show(f"The slowest of {len(compiles)} compiles, of {clock(sum(row[0] for row in compiles)).strip()} in all",
         sorted(compiles, reverse=True)[:NUM_COMPILES])
    failed = [name for _, name, status in [*tests, *stages] if status == "fail"]
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nnothing failed" if stages else "\nno stage ran")


if __name__ == "__main__":
    main()
