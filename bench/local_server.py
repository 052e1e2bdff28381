# SPDX-License-Identifier: Apache-2.0
"""A server for the measurements of bench/."""

import re
import subprocess
import threading


class LocalServer:
    """`warprow serve MODEL FLAGS...` on a free port, from when it is ready to the end of a `with` block."""

    def __init__(self, warprow, model, *flags):
        self.process = subprocess.Popen([warprow, "serve", model, "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
        said = ""
        while line := self.process.stderr.readline():
            said += line
            if found := re.search(r"^ready in .*http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise RuntimeError(said)
        self.port = int(found.group(1))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
