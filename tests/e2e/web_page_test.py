#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A person's way through the page at "/", in headless Chromium, with keys and clicks that the browser itself makes.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/web_page_test.py [-k NAME]

WARPROW_CHROMIUM names the browser (chromium-headless-shell, chromium or google-chrome in PATH otherwise), WARPROW_SCREENSHOTS
a folder for pictures to look at. Environment as in cli_test.py. Exits 77, which ctest shows as skipped, without a browser or model.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cli_test import default_model_file  # noqa: E402
from server_test import Server  # noqa: E402

PATIENCE = 60
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
KEYS = {"Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), "Tab": ("Tab", 9, "")}


def find_browser():
    named = os.environ.get("WARPROW_CHROMIUM")
    return named or next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    """Chromium with one page, driven over its debugging pipe (file descriptors 3 and 4, messages end with a zero byte)."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to_browser = os.pipe()
        self.from_browser, to_write = os.pipe()

        def place_pipes():
            os.dup2(to_read, 13)
            os.dup2(to_write, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        self.process = subprocess.Popen(
            [find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile.name}", "about:blank"],
            preexec_fn=place_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.last_id = 0
        self.rest = b""
        self.session = None
        self.requested, self.complaints = [], []
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        os.close(self.to_browser)
        os.close(self.from_browser)
        self.profile.cleanup()

    def messages(self):
        if not select.select([self.from_browser], [], [], PATIENCE)[0]:
            raise AssertionError("the browser says nothing")
        *whole, self.rest = (self.rest + os.read(self.from_browser, 1 << 20)).split(b"\0")
        return map(json.loads, whole)

    def call(self, method, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        answer = None
        while answer is None:
            for got in self.messages():
                if got.get("id") == self.last_id:
                    answer = got
                self.note(got)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"])
        elif event.get("method") == "Log.entryAdded":
            entry = params["entry"]  # verbose ones are advice, and another one in each build of the browser
            if entry["source"] != "network" and entry["level"] != "verbose":
                self.complaints.append(entry)

    def look(self, expression):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, expression):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if value := self.look(expression):
                return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}; the page says: {self.look('document.body.innerText')}")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && typeof load_models === 'function'")

    def resize(self, width, height, dark=False, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def press(self, key):
        name, code, text = KEYS[key]
        common = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        box = self.look(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'nearest'}});"
                        "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def fill(self, field, text):
        """Replaces a field's text as a person does: click, select all, type."""
        self.click("#" + field)
        self.look(f"document.getElementById('{field}').select()")
        self.write(text) if text else self.call("Input.dispatchKeyEvent", type="keyDown", key="Delete", code="Delete",
                                                windowsVirtualKeyCode=46)

    def picture(self, name):
        if folder := os.environ.get("WARPROW_SCREENSHOTS"):
            data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
            (Path(folder) / f"{name}.png").write_bytes(data)


def answers(browser):
    return browser.look("[...document.querySelectorAll('.turn.assistant .text')].map((e) => e.innerText)")


class WebPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.url = f"http://127.0.0.1:{cls.server.port}/"
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        assert cls.server.stop() == 0

    def setUp(self):
        self.browser.requested.clear()
        self.browser.complaints.clear()
        self.browser.resize(1280, 800)
        self.browser.open(self.url)
        self.browser.look("localStorage.clear(), sessionStorage.clear()")
        self.browser.open(self.url)
        self.browser.wait_for("document.title.includes('·')")

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [])
        elsewhere = [url for url in self.browser.requested if not url.startswith((self.url, "data:"))]
        self.assertEqual(elsewhere, [])

    def ask(self, text):
        self.browser.look("document.getElementById('prompt').focus()")
        self.browser.write(text)
        self.browser.press("Enter")

    def wait_for_answer(self, number=1):
        self.browser.wait_for(f"document.querySelectorAll('.turn.assistant .below').length === {number}")

    def test_a_conversation_by_keyboard(self):
        browser = self.browser
        browser.fill("temperature", "0")
        browser.fill("max_tokens", "24")
        browser.fill("system", "You are brief.")
        self.ask("What is gravity?")
        self.wait_for_answer()
        body = {"messages": [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is gravity?"}],
                "temperature": 0, "max_tokens": 24}
        _, whole = self.server.post("/v1/chat/completions", body)
        wanted = whole["choices"][0]["message"]["content"]
        self.assertEqual(answers(browser)[0].split(), wanted.split())
        note = browser.look("document.querySelector('.speed').textContent")
        self.assertRegex(note, r"^24 tokens · \d+\.\d tokens/s · first after \d+ ms · cut at the longest length$")
        self.ask("And what is light?")
        self.wait_for_answer(2)
        body["messages"] += [{"role": "assistant", "content": wanted}, {"role": "user", "content": "And what is light?"}]
        _, second = self.server.post("/v1/chat/completions", body)
        self.assertEqual(answers(browser)[1].split(), second["choices"][0]["message"]["content"].split())
        browser.picture("wide-light")
        browser.open(self.url)  # a reload keeps conversation and settings
        self.assertEqual(len(answers(browser)), 2)
        self.assertEqual(browser.look("document.getElementById('max_tokens').value"), "24")
        browser.click("#fresh")
        self.assertEqual(answers(browser), [])

    def test_text_streams_in_and_escape_stops_it(self):
        browser = self.browser
        browser.fill("temperature", "0")  # by chance an answer may be brief; the likeliest ones to these are long
        self.ask("Tell me a very long story about a ship, with many chapters.")
        lengths = set()
        while len(lengths) < 5:
            lengths.add(browser.wait_for("document.querySelector('.running .text')?.innerText.length"))
        self.assertEqual(browser.look("document.getElementById('send').textContent"), "Stop")
        browser.picture("streaming")
        browser.press("Escape")
        self.wait_for_answer()
        self.assertIn("stopped", browser.look("document.querySelector('.speed').textContent"))
        self.assertEqual(browser.look("document.getElementById('send').textContent"), "Send")
        self.assertGreaterEqual(len(answers(browser)[0]), min(lengths))
        self.ask("Tell me everything about the history of Rome.")
        browser.wait_for("document.querySelector('.running .text')?.innerText.length")
        browser.click("#send")
        self.wait_for_answer(2)

    def test_errors_are_shown_and_can_be_mended(self):
        browser = self.browser
        browser.fill("top_p", "0")
        browser.fill("max_tokens", "4")
        self.ask("Hi")
        self.wait_for_answer()
        shown = browser.look("document.querySelector('[role=alert]').textContent")
        self.assertIn("400", shown)
        self.assertIn("top_p", shown)
        browser.picture("error")
        browser.fill("top_p", "")
        browser.click(".below button")
        browser.wait_for("document.querySelector('.speed')?.textContent.includes('tokens')")
        self.assertEqual(browser.look("document.querySelectorAll('[role=alert]').length"), 0)
        browser.fill("temperature", "9")  # wrong already here
        self.ask("Hi")
        self.assertEqual(browser.look("document.activeElement.id"), "temperature")
        self.assertEqual(len(answers(browser)), 1)

    def test_a_phone_and_the_dark(self):
        browser = self.browser
        browser.resize(390, 844, dark=True, phone=True)
        browser.open(self.url)
        self.assertTrue(browser.look("document.getElementById('settings').hidden"))
        browser.click("#toggle")
        self.assertFalse(browser.look("document.getElementById('settings').hidden"))
        browser.fill("max_tokens", "40")
        browser.fill("temperature", "0")
        browser.picture("phone-settings")
        browser.press("Escape")
        self.assertTrue(browser.look("document.getElementById('settings').hidden"))
        self.ask("Write a line of `code` and " + "a_very_long_word" * 8)
        self.wait_for_answer()
        self.assertLessEqual(browser.look("document.documentElement.scrollWidth"), 390)
        browser.picture("phone-dark")
        browser.resize(320, 568, dark=True, phone=True)
        self.assertLessEqual(browser.look("document.documentElement.scrollWidth"), 320)

    def test_markdown_becomes_nodes_and_never_html(self):
        text = ("# Title\n\nA **bold** and *slanted* `x < y` [link](https://example.org/a).\n\n1. one\n2. two\n\n"
                "```py\nif a < b:\n    pass\n```\n<img src=x onerror=alert(1)> 2 * 3 * 4 [bad](javascript:alert(1))")
        html = self.browser.look("(() => { const d = document.createElement('div'); d.append(markdown("
                                 + json.dumps(text) + ")); return d.innerHTML; })()")
        for part in ("<h2>Title</h2>", "<strong>bold</strong>", "<em>slanted</em>", "<code>x &lt; y</code>",
                     '<a href="https://example.org/a" rel="noreferrer noopener" target="_blank">link</a>',
                     "<ol start=\"1\"><li>one</li><li>two</li></ol>", "<code>if a &lt; b:\n    pass</code></pre>",
                     "&lt;img src=x onerror=alert(1)&gt; 2 * 3 * 4 [bad](javascript:alert(1))"):
            self.assertIn(part, html)


class Guarded(unittest.TestCase):
    def test_the_page_asks_for_the_key(self):
        server = Server("--api-key", "secret")
        browser = Browser()
        try:
            browser.resize(1280, 800)
            browser.open(f"http://127.0.0.1:{server.port}/")
            browser.wait_for("document.getElementById('status').textContent.includes('401')")
            browser.fill("key", "secret")
            browser.press("Tab")
            browser.wait_for("document.getElementById('model').value")
            browser.fill("key", "wrong")
            browser.press("Enter")  # asks again, and sends the form nowhere
            browser.wait_for("document.getElementById('status').textContent.includes('401')")
            browser.fill("key", "secret")
            browser.press("Enter")
            browser.wait_for("document.getElementById('status').textContent === ''")
            self.assertEqual(browser.look("location.href"), f"http://127.0.0.1:{server.port}/")
            self.assertNotIn("secret", browser.look("JSON.stringify(localStorage)"))
            self.assertTrue(browser.look("document.getElementById('key').form !== null"), "Chromium wants a form around a password field")
        finally:
            browser.close()
            self.assertEqual(server.stop(), 0)


def main():
    for thing, where in ((find_browser(), "a Chromium browser (Debian: chromium-headless-shell)"),
                         (os.path.exists(default_model_file()), default_model_file())):
        if not thing:
            print(f"skipped: {where} is not on this machine", file=sys.stderr)
            return 77
    return 0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
