# SPDX-License-Identifier: Apache-2.0
"""Finds the clients that tools/fetch_clients.sh installed, or skips the test. Adds tests/e2e to the path."""

import importlib
import os
import sys

CACHE = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
SKIPPED = 77  # the exit status that ctest shows as skipped

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))


def program(client, name):
    return os.path.join(CACHE, "warprow", "clients", client, "bin", name)


def skip(client):
    print(f"skipped: {client} is not here; tools/fetch_clients.sh fetches it")
    sys.exit(SKIPPED)


def need(client, *modules):
    """Imports the modules. If that fails, restarts the test with the client's own Python."""
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError:
        python = program(client, "python")
        home = os.path.dirname(os.path.dirname(python))
        if os.path.exists(python) and os.path.realpath(sys.prefix) != os.path.realpath(home):
            os.execv(python, [python, *sys.argv])
        skip(client)
