#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""schemathesis over the server's own /openapi.json: requests generated from the description must cause no 5xx and
no status, header or body that it does not declare. Requests that it forbids must be refused.

Usage and environment as tests/e2e/server_test.py; EXAMPLES is the number of requests per operation (20). schemathesis comes from
tools/fetch_clients.sh; without it the exit status is 77.
"""

import os
import subprocess
import sys
import tempfile

import client_env
import server_test

PROGRAM = os.environ.get("SCHEMATHESIS", client_env.program("schemathesis", "schemathesis"))
# A schema cannot express how fields depend on one another (n with temperature 0, min_tokens and max_tokens). The server
# may therefore refuse what the schema allows.
EXCLUDED = "positive_data_acceptance"


def main():
    if not os.path.exists(PROGRAM):
        client_env.skip("schemathesis")
    server = server_test.Server("--max-model-len", "64", "--api-key", "k")
    folder = tempfile.TemporaryDirectory()  # schemathesis leaves a cache in its working directory
    try:
        return subprocess.run([PROGRAM, "run", f"http://127.0.0.1:{server.port}/openapi.json", "--checks", "all",
                               "--exclude-checks", EXCLUDED, "--max-examples", os.environ.get("EXAMPLES", "20"),
                               "--phases", "examples,coverage,fuzzing", "--header", "Authorization: Bearer k",
                               "--request-timeout", "60", "--no-color", "--seed", "1"], check=False,
                              cwd=folder.name).returncode
    finally:
        folder.cleanup()
        assert server.stop() == 0


if __name__ == "__main__":
    sys.exit(main())
