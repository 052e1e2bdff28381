# SPDX-License-Identifier: Apache-2.0
"""python -m warprow.vllm_compat MODULE [ARGS]: runs a module, as `python -m` does, for which `import vllm` finds this engine."""

import runpy
import sys

from . import install


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m warprow.vllm_compat MODULE [ARGS]")
    install()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
