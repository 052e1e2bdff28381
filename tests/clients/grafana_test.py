#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboard packaging/grafana/warprow.json against Grafana's own schema, and its queries against a Prometheus that scrapes
`warprow serve`.

The schema is that of grafana-foundation-sdk, which Grafana generates: what it does not know would be lost when it reads and
writes the dashboard. The package comes from tools/fetch_clients.sh; without it the exit status is 77, which ctest shows as
skipped. The queries are skipped without a prometheus in PATH (Debian: prometheus).

Environment as tests/e2e/server_test.py.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

import client_env

client_env.need("grafana", "grafana_foundation_sdk")

from grafana_foundation_sdk.cog import plugins  # noqa: E402
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402
from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: E402

import server_test  # noqa: E402
from server_test import Server  # noqa: E402

FILE = Path(__file__).resolve().parents[2] / "packaging/grafana/warprow.json"
DASHBOARD = json.loads(FILE.read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
PATIENCE = 60


def lost(before, after, place="dashboard"):
    """What `before` has and `after` has not."""
    if isinstance(before, dict):
        for name, value in before.items():
            yield from lost(value, after[name], f"{place}.{name}") if isinstance(after, dict) and name in after else [f"{place}.{name}"]
    elif isinstance(before, list):
        if not isinstance(after, list) or len(after) != len(before):
            yield place
        else:
            for i, (one, other) in enumerate(zip(before, after)):
                yield from lost(one, other, f"{place}[{i}]")
    elif before != after:
        yield f"{place}: {before} became {after}"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Schema(unittest.TestCase):
    def test_grafana_keeps_every_member(self):
        plugins.register_default_plugins()
        read = Dashboard.from_json(DASHBOARD)
        self.assertEqual(list(lost(DASHBOARD, json.loads(JSONEncoder().encode(read)))), [])
        self.assertEqual(len(read.panels), len(DASHBOARD["panels"]))
        wrong = {**DASHBOARD, "colour": 1}
        self.assertEqual(list(lost(wrong, json.loads(JSONEncoder().encode(Dashboard.from_json(wrong))))), ["dashboard.colour"])

    def test_panels_do_not_overlap(self):
        cells = [(x, y) for panel in DASHBOARD["panels"] for box in [panel["gridPos"]]
                 for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])]
        self.assertEqual(len(cells), len(set(cells)))
        self.assertLess(max(x for x, _ in cells), 24)
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        self.assertEqual(len(ids), len(set(ids)))

    def test_variables_are_declared(self):
        declared = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)", FILE.read_text(encoding="utf-8")))
        self.assertLessEqual({name for name in used if not name.startswith("__")}, declared)


@unittest.skipUnless(shutil.which("prometheus"), "prometheus is not here")
class Queries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)
        folder = tempfile.TemporaryDirectory(prefix="warprow-prometheus-")
        cls.addClassCleanup(folder.cleanup)
        config = Path(folder.name) / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": [{
            "job_name": "warprow", "scrape_interval": "1s", "static_configs": [{"targets": [f"127.0.0.1:{cls.server.port}"]}]}]}))
        cls.port = free_port()
        process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder.name}/data",
                                    f"--web.listen-address=127.0.0.1:{cls.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(process.wait, PATIENCE)
        cls.addClassCleanup(process.terminate)

    def ask(self, query):
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return json.load(answer)["data"]["result"]

    def value(self, query):
        """The one value of a query; None while there is none."""
        found = self.ask(query)
        return float(found[0]["value"][1]) if found else None

    def wait_for(self, query):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                if (self.value(query) or 0) > 0:
                    return
            except OSError:  # it starts
                pass
            self.server.post("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0})
            time.sleep(0.2)
        self.fail(f"never above 0: {query}")

    def test_each_has_values(self):
        self.wait_for("rate(vllm:generation_tokens_total[1m])")
        self.wait_for("rate(warprow:http_requests_total{status='200'}[1m])")
        for query in QUERIES:
            with self.subTest(query):
                asked = query.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$job", ".*")
                self.assertNotEqual(self.ask(asked), [])


if __name__ == "__main__":
    sys.exit(server_test.main())
