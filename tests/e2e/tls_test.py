#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Black-box tests of HTTPS: `warprow serve --ssl-certfile`, and the commands that talk to such a server.

Usage and environment as server_test.py; certificates are made with the `openssl` command.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import server_test
from server_test import BIN, CHAT, MODEL, PROMPT, TIMEOUT, Server, clean_environment
from server_life_test import LONG, Case, UnixServer, stream, wait_until


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=TIMEOUT)


class Certificates:
    """An authority, a certificate for localhost and 127.0.0.1, a client's certificate, and unrelated ones.

    Python 3.13 and later enforce RFC 5280: an authority states its key usage, the others state which key signed them.
    """

    def __init__(self, folder):
        self.folder = folder
        self.authority("ca")
        self.authority("stranger")
        self.leaf("server", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        self.leaf("elsewhere", "subjectAltName=DNS:elsewhere.example")
        self.leaf("client", "extendedKeyUsage=clientAuth")
        openssl("rsa", "-aes256", "-passout", "pass:secret", "-in", self.path("server.key"), "-out", self.path("locked.key"))
        openssl("genpkey", "-algorithm", "ED25519", "-out", self.path("other_kind.key"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def authority(self, name):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
                "keyUsage=critical,keyCertSign,cRLSign", "-keyout", self.path(name + ".key"), "-out", self.path(name + ".pem"))

    def leaf(self, name, extension, authority="ca"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", self.path(name + ".key"), "-out",
                self.path(name + ".csr"))
        with open(self.path("extensions"), "w", encoding="ascii") as file:
            file.write(f"{extension}\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n")
        openssl("x509", "-req", "-days", "2", "-in", self.path(name + ".csr"), "-CA", self.path(authority + ".pem"),
                "-CAkey", self.path(authority + ".key"), "-CAcreateserial", "-extfile", self.path("extensions"), "-out", self.path(name + ".pem"))

    def server_flags(self, name="server"):
        return ["--ssl-certfile", self.path(name + ".pem"), "--ssl-keyfile", self.path(name + ".key")]

    def trusting(self, authority="ca", client=None):
        context = ssl.create_default_context(cafile=self.path(authority + ".pem"))
        if client:
            context.load_cert_chain(self.path(client + ".pem"), self.path(client + ".key"))
        return context


class TlsServer(Server):
    def __init__(self, certificates, *flags, certificate="server"):
        super().__init__(*certificates.server_flags(certificate), *flags)
        self.context = certificates.trusting()

    def connect(self):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT, context=self.context)


def client(*arguments, environment=None, **options):
    """Runs one of our commands."""
    return subprocess.run([BIN, *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False,
                          env={**clean_environment(), **(environment or {})}, **options)


class WithServer(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.certificates = Certificates(cls.folder.name)
        cls.server = TlsServer(cls.certificates, "--read-timeout", "3")
        cls.url = f"https://localhost:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def path(self, name):
        return self.certificates.path(name)


class Tls(WithServer):
    def raw(self):
        return socket.create_connection(("127.0.0.1", self.server.port), TIMEOUT)

    def test_answers_are_those_of_http(self):
        self.assertIn("https://127.0.0.1:", self.server.ready_line)
        body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24}
        plain = self.serve()
        self.assertEqual(self.server.post("/v1/completions", body)[1]["choices"], plain.post("/v1/completions", body)[1]["choices"])
        text = self.server.post("/v1/completions", body)[1]["choices"][0]["text"]
        self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in self.server.events("/v1/completions", body)), text)

    def test_a_connection_is_kept_and_large_bodies_pass(self):
        connection = self.server.connect()
        self.addCleanup(connection.close)
        # The second is too long for the model, and larger than a TLS record.
        for prompt in (PROMPT, "x " * 200_000, PROMPT):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 2}))
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200 if prompt == PROMPT else 400)
            answer.read()
        connection.request("GET", "/openapi.json")
        self.assertGreater(len(connection.getresponse().read()), 20_000)

    def test_versions_and_endings(self):
        with self.certificates.trusting().wrap_socket(self.raw(), server_hostname="localhost") as stream:
            self.assertEqual(stream.version(), "TLSv1.3")
            stream.sendall(b"GET /version HTTP/1.0\r\n\r\n")
            data = b""
            while piece := stream.recv(4096):  # raises if close_notify is missing
                data += piece
            self.assertIn(b"200 OK", data)
        old = self.certificates.trusting()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with old.wrap_socket(self.raw(), server_hostname="localhost") as stream:
            self.assertEqual(stream.version(), "TLSv1.2")

    def test_pipelined_requests_are_answered_in_order(self):
        body = json.dumps({"prompt": PROMPT, "max_tokens": 4, "temperature": 0}).encode()
        post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        with self.certificates.trusting().wrap_socket(self.raw(), server_hostname="localhost") as stream:
            stream.sendall(post)
            time.sleep(0.005)  # so that the next ones arrive while the first is answered
            stream.sendall(post)
            stream.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            data = b""
            while piece := stream.recv(4096):
                data += piece
        self.assertEqual(data.count(b"HTTP/1.1 200 OK"), 3)
        self.assertLess(data.rindex(b"text_completion"), data.index(b'"version"'))

    def test_a_slow_reader_gets_all_and_one_that_takes_nothing_is_cut(self):
        server = UnixServer(self.path("s"), "--write-timeout", "2", *self.certificates.server_flags())
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        for streams in (False, True):
            self.check_slow_readers(
                lambda: self.certificates.trusting().wrap_socket(server.open(), server_hostname="localhost"), streams)

    def test_a_client_that_leaves_ends_its_requests(self):
        for streams in (True, False):
            connection = self.server.connect()
            connection.request("POST", "/v1/completions", json.dumps({**LONG, "stream": streams}))
            if streams:
                connection.getresponse().read(10)
            self.assertTrue(wait_until(lambda: len(self.state(self.server)["requests"]) == 1))
            connection.close()
            self.assertTrue(wait_until(lambda: self.state(self.server)["requests"] == [], 5), f"stream {streams}")

    def test_plain_http_is_told(self):
        plain = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=TIMEOUT)
        self.addCleanup(plain.close)
        plain.request("POST", "/v1/completions", json.dumps({"prompt": "x " * 10_000}))
        answer = plain.getresponse()
        self.assertEqual(answer.status, 400)
        self.assertIn("HTTPS", json.loads(answer.read())["error"]["message"])
        with self.raw() as stream:
            stream.sendall(b"\x00\x01 no TLS and no HTTP either")
            stream.settimeout(5)
            try:
                self.assertNotIn(b"HTTP", stream.recv(4096))
            except ConnectionResetError:
                pass

    def test_half_open_handshakes_hold_nobody_up_and_end(self):
        silent = [self.raw() for _ in range(100)]
        for stream in silent[:50]:
            stream.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")  # the beginning of a ClientHello
        begin = time.monotonic()
        self.assertEqual(self.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})[0], 200)
        self.assertLess(time.monotonic() - begin, 2)
        for stream in silent:
            stream.settimeout(10)
            try:
                while stream.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            stream.close()
        self.assertLess(time.monotonic() - begin, 8)  # --read-timeout 3
        self.assertTrue(wait_until(lambda: self.state(self.server)["connections"] == 1))

    def test_clients_do_not_trust_strangers(self):
        for context in (self.certificates.trusting("stranger"), ssl.create_default_context()):
            with self.assertRaises(ssl.SSLCertVerificationError):
                context.wrap_socket(self.raw(), server_hostname="localhost")
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)

    def test_a_drain_says_goodbye_and_does_not_wait_for_idle_clients(self):
        server = TlsServer(self.certificates)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        idle = server.connect()
        self.addCleanup(idle.close)
        idle.request("GET", "/health")
        idle.getresponse().read()
        begin = time.monotonic()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - begin, 3)
        self.assertEqual(idle.sock.recv(1), b"")

    def test_clients_certificates(self):
        server = TlsServer(self.certificates, "--ssl-ca-certs", self.path("ca.pem"))
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            server.ask("GET", "/health")
        server.context = self.certificates.trusting(client="client")
        for _ in range(2):
            self.assertEqual(server.ask("GET", "/health")[0], 200)

    def test_curl(self):
        if not shutil.which("curl"):
            self.skipTest("curl is not here")
        done = subprocess.run(["curl", "-sS", "--cacert", self.path("ca.pem"), "-d", json.dumps({"messages": CHAT, "max_tokens": 4}),
                               self.url + "/v1/chat/completions"], capture_output=True, timeout=TIMEOUT, check=True)
        self.assertEqual(json.loads(done.stdout)["usage"]["completion_tokens"], 4)


class OurClients(WithServer):
    def test_they_speak_https(self):
        trust = ("--ssl-ca-certs", self.path("ca.pem"))
        chat = client("chat", "--base-url", self.url + "/v1", "--max-tokens", "8", "--temperature", "0", *trust, input="What is gravity?\n")
        self.assertEqual(chat.returncode, 0, chat.stderr)
        self.assertTrue(chat.stdout.strip())
        top = client("top", "--base-url", self.url, "--output", "json", environment={"SSL_CERT_FILE": self.path("ca.pem")})
        self.assertEqual(top.returncode, 0, top.stderr)
        self.assertEqual(json.loads(top.stdout)["model"], MODEL)
        bench = client("bench", "serve", "--base-url", f"https://127.0.0.1:{self.server.port}", "--num-prompts", "4",
                       "--random-input-len", "8", "--random-output-len", "4", "--output", "json", *trust)
        self.assertEqual(bench.returncode, 0, bench.stderr)
        self.assertEqual(json.loads(bench.stdout)["completed"], 4)

    def test_they_refuse_whom_they_do_not_trust(self):
        elsewhere = TlsServer(self.certificates, certificate="elsewhere")
        self.addCleanup(lambda: elsewhere.process.poll() is None and elsewhere.stop())
        plain = self.serve()
        for url, trusted, words in ((self.url, "stranger.pem", "certificate"),
                                    (f"https://localhost:{elsewhere.port}", "ca.pem", "hostname mismatch"),
                                    (f"https://127.0.0.1:{elsewhere.port}", "ca.pem", "IP address mismatch"),
                                    (f"https://127.0.0.1:{plain.port}", "ca.pem", "wrong version number"),
                                    (self.url, "missing.pem", "--ssl-ca-certs")):
            top = client("top", "--base-url", url, "--once", "--ssl-ca-certs", self.path(trusted))
            self.assertEqual(top.returncode, 3, (url, top.stderr))
            self.assertIn(words, top.stderr)
        self.assertIn("certificate", client("top", "--base-url", self.url, "--once").stderr)
        insecure = client("top", "--base-url", self.url.replace("https", "http"), "--once")
        self.assertEqual(insecure.returncode, 2, insecure.stderr)
        self.assertIn("HTTPS", insecure.stderr)


class Errors:
    """Collects the stderr of a process."""

    def __init__(self, process):
        self.text = ""
        threading.Thread(target=self.read, args=(process.stderr,), daemon=True).start()

    def read(self, lines):
        for line in lines:
            self.text += line

    def wait_for(self, *words):
        """Waits for a line with all of these words and removes it. Returns whether it came."""
        def found():
            return next((line for line in self.text.splitlines() if all(word in line for word in words)), None)
        line = wait_until(found)
        if line:
            self.text = self.text.replace(line, "", 1)
        return bool(line)


class Reloading(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.certificates = Certificates(cls.folder.name)
        cls.certificates.leaf("renewed", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        cls.certificates.leaf("guest", "extendedKeyUsage=clientAuth", authority="stranger")

    def setUp(self):
        live = tempfile.TemporaryDirectory()
        self.addCleanup(live.cleanup)
        self.live = live.name

    def put(self, source, name):
        """Overwrites one of the server's files in place."""
        shutil.copyfile(self.certificates.path(source), os.path.join(self.live, name))

    def serve_tls(self, *flags):
        server = Server("--ssl-certfile", os.path.join(self.live, "tls.crt"), "--ssl-keyfile", os.path.join(self.live, "tls.key"),
                        *flags)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        server.context = self.certificates.trusting(client="client")
        server.connect = lambda: http.client.HTTPSConnection("127.0.0.1", server.port, timeout=TIMEOUT, context=server.context)
        return server

    def shown(self, server):
        """The subject of the certificate that a new client sees."""
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as plain:
            with server.context.wrap_socket(plain, server_hostname="localhost") as stream:
                return dict(part[0] for part in stream.getpeercert()["subject"])["commonName"]

    def put_secret(self, version, name):
        """Replaces all files at once like Kubernetes: they are links into a folder that is itself a link."""
        folder = os.path.join(self.live, version)
        os.mkdir(folder)
        shutil.copyfile(self.certificates.path(name + ".pem"), os.path.join(folder, "tls.crt"))
        shutil.copyfile(self.certificates.path(name + ".key"), os.path.join(folder, "tls.key"))
        os.symlink(version, os.path.join(self.live, "..data_tmp"))
        os.rename(os.path.join(self.live, "..data_tmp"), os.path.join(self.live, "..data"))

    def test_files_that_links_name_are_replaced(self):
        self.put_secret("v1", "server")
        for name in ("tls.crt", "tls.key"):
            os.symlink(f"..data/{name}", os.path.join(self.live, name))
        server = self.serve_tls()
        self.assertEqual(self.shown(server), "server")
        idle = server.connect()
        self.addCleanup(idle.close)
        idle.request("GET", "/health")
        idle.getresponse().read()
        running, answer = stream(server)
        self.addCleanup(running.close)
        answer.read(10)
        self.put_secret("v2", "renewed")
        self.assertTrue(wait_until(lambda: self.shown(server) == "renewed"))
        # Connections with the old certificate continue.
        self.assertEqual(len(answer.read(2000)), 2000)
        idle.request("GET", "/version")
        self.assertEqual(idle.getresponse().status, 200)
        self.assertEqual(dict(part[0] for part in idle.sock.getpeercert()["subject"])["commonName"], "server")
        self.assertEqual(server.ask("GET", "/health")[0], 200)

    def test_what_cannot_be_used_is_not(self):
        self.put("server.pem", "tls.crt")
        self.put("server.key", "tls.key")
        server = self.serve_tls()
        errors = Errors(server.process)
        self.put("renewed.pem", "tls.crt")
        server.process.send_signal(signal.SIGHUP)
        self.assertTrue(errors.wait_for("certificate was not replaced", "not the key of the certificate"))
        with open(os.path.join(self.live, "tls.crt"), "w", encoding="ascii") as file:
            file.write("-----BEGIN CERTIFICATE-----\nbroken")
        server.process.send_signal(signal.SIGHUP)
        self.assertTrue(errors.wait_for("certificate was not replaced", "no certificate in PEM form"))
        os.unlink(os.path.join(self.live, "tls.crt"))
        server.process.send_signal(signal.SIGHUP)
        self.assertTrue(errors.wait_for("certificate was not replaced", "No such file"))
        self.assertEqual(self.shown(server), "server")
        self.put("renewed.pem", "tls.crt")
        self.put("renewed.key", "tls.key")
        self.assertTrue(wait_until(lambda: self.shown(server) == "renewed"))
        self.assertEqual(server.stop(), 0)

    def test_sighup_reads_at_once_and_the_authority_of_clients_too(self):
        self.put("server.pem", "tls.crt")
        self.put("server.key", "tls.key")
        self.put("ca.pem", "clients.crt")
        server = self.serve_tls("--ssl-ca-certs", os.path.join(self.live, "clients.crt"), "--log-level", "info")
        errors = Errors(server.process)
        kept = server.connect()
        self.addCleanup(kept.close)
        kept.request("GET", "/health")
        kept.getresponse().read()
        self.put("stranger.pem", "clients.crt")
        server.process.send_signal(signal.SIGHUP)
        self.assertTrue(errors.wait_for("the certificate was read again"))
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            server.ask("GET", "/health")
        server.context = self.certificates.trusting(client="guest")
        self.assertEqual(server.ask("GET", "/health")[0], 200)
        kept.request("GET", "/health")
        self.assertEqual(kept.getresponse().status, 200)

    def test_sighup_ends_no_server(self):
        path = os.path.join(self.live, "socket")
        process = subprocess.Popen([BIN, "serve", MODEL, "--uds", path], stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        errors = Errors(process)
        self.assertTrue(wait_until(lambda: os.path.exists(path)))
        process.send_signal(signal.SIGHUP)  # while it loads the model
        self.assertTrue(errors.wait_for("ready in"))
        self.assertTrue(errors.wait_for("SIGHUP", "nothing is done"))
        process.send_signal(signal.SIGHUP)
        self.assertTrue(errors.wait_for("SIGHUP", "nothing is done"))
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(path)
            plain.sendall(b"GET /version HTTP/1.0\r\n\r\n")
            self.assertIn(b"200 OK", plain.recv(4096))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(TIMEOUT), 0)

    def test_keys_of_a_file_are_replaced(self):
        path = os.path.join(self.live, "keys")

        def write(text):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)

        def opens(key):
            return server.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200

        write("old\n")
        server = self.serve("--api-key", "fixed", "--api-key-file", path)
        errors = Errors(server.process)
        self.assertTrue(opens("old"))
        write("new\nnewer\n")
        self.assertTrue(wait_until(lambda: opens("new")))
        write("# none\n")
        server.process.send_signal(signal.SIGHUP)
        self.assertTrue(errors.wait_for("--api-key-file was not replaced", "no key"))
        self.assertEqual([opens(key) for key in ("fixed", "old", "new", "newer", "")], [True, False, True, True, False])


class Starting(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.certificates = Certificates(cls.folder.name)

    def refuse(self, code, words, *flags):
        done = client("serve", MODEL, "--port", "0", *flags)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_what_is_wrong_is_named(self):
        path = self.certificates.path
        certificate = ("--ssl-certfile", path("server.pem"))
        with open(path("empty.pem"), "w", encoding="ascii"):
            pass
        self.refuse(3, ["--ssl-certfile", "No such file"], "--ssl-certfile", path("missing.pem"))
        self.refuse(3, ["--ssl-certfile", "Is a directory"], "--ssl-certfile", self.folder.name)
        self.refuse(3, ["--ssl-certfile", "empty"], "--ssl-certfile", path("empty.pem"))
        self.refuse(2, ["--ssl-certfile", "no certificate"], "--ssl-certfile", path("server.key"))
        self.refuse(2, ["--ssl-certfile", "--ssl-keyfile is not given"], *certificate)
        self.refuse(3, ["--ssl-keyfile", "No such file"], *certificate, "--ssl-keyfile", path("missing.key"))
        self.refuse(2, ["--ssl-keyfile", "no private key"], *certificate, "--ssl-keyfile", path("ca.pem"))
        for key in ("client.key", "other_kind.key"):
            self.refuse(2, ["--ssl-keyfile", "not the key of the certificate"], *certificate, "--ssl-keyfile", path(key))
        locked = (*certificate, "--ssl-keyfile", path("locked.key"))
        self.refuse(2, ["encrypted", "--ssl-keyfile-password is not given"], *locked)
        self.refuse(2, ["cannot be decrypted"], *locked, "--ssl-keyfile-password", "wrong")
        self.refuse(2, ["--ssl-keyfile needs --ssl-certfile"], "--ssl-keyfile", path("server.key"))
        self.refuse(2, ["--ssl-ca-certs needs --ssl-certfile"], "--ssl-ca-certs", path("ca.pem"))
        self.refuse(2, ["--ssl-keyfile-password needs --ssl-certfile"], "--ssl-keyfile-password", "secret")
        self.refuse(2, ["--ssl-cert-reqs"], *locked, "--ssl-cert-reqs", "3")
        for number in ("1", "2"):
            self.refuse(2, ["--ssl-cert-reqs 1 and 2 need --ssl-ca-certs"], *certificate, "--ssl-keyfile", path("server.key"),
                        "--ssl-cert-reqs", number)

    def test_an_encrypted_key_and_a_file_of_both(self):
        path = self.certificates.path
        with open(path("both.pem"), "wb") as both:
            for name in ("server.key", "server.pem"):
                with open(path(name), "rb") as part:
                    shutil.copyfileobj(part, both)
        for flags in (["--ssl-keyfile", path("locked.key"), "--ssl-keyfile-password", "secret", "--ssl-certfile", path("server.pem")],
                      ["--ssl-certfile", path("both.pem")]):
            server = Server(*flags)
            server.connect = lambda at=server: http.client.HTTPSConnection(
                "127.0.0.1", at.port, timeout=TIMEOUT, context=self.certificates.trusting())
            try:
                self.assertEqual(server.ask("GET", "/health")[0], 200)
            finally:
                self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    if not shutil.which("openssl"):
        print("skipped: the openssl command is not here")
        sys.exit(77)
    sys.exit(server_test.main())
