# SPDX-License-Identifier: Apache-2.0
"""The console script `warprow`, and `python -m warprow`: the binary inside the package."""

import os
import sys
from pathlib import Path


def main() -> None:
    binary = str(Path(__file__).resolve().parent / "bin" / "warprow")
    try:
        os.execv(binary, ["warprow", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"warprow: cannot run {binary}: {error.strerror}")


if __name__ == "__main__":
    main()
