# SPDX-License-Identifier: MIT
"""Debian's chromium, without a screen, driven over WebDriver. Everything that it writes goes below a folder; it asks no
network, and has a port of its own."""
import base64
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time


class Failure(Exception):
    pass


def check(condition, *words):
    if not condition:
        raise Failure(" ".join(str(word) for word in words))


class Browser:
    def __init__(self, folder):
        self.folder = folder
        self.session = self.browser_pid = None
        environment = dict(os.environ, HOME=folder, XDG_CONFIG_HOME=folder, XDG_CACHE_HOME=folder, TMPDIR=folder)
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY"):
            environment.pop(name, None)
        self.log = open(os.path.join(folder, "chromedriver.log"), "w+b")
        self.driver = subprocess.Popen([shutil.which("chromedriver") or "/usr/bin/chromedriver", "--port=0"],
                                       stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment)
        try:
            self.start()
        except BaseException:
            self.end()
            raise

    def start(self):
        self.port = self.wait_for_port()
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--disable-extensions",
                     "--disable-sync", "--disable-breakpad", "--disable-crash-reporter", "--window-size=1280,900", "--force-device-scale-factor=1",
                     "--user-data-dir=" + os.path.join(self.folder, "profile")]
        answer = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"}, "goog:chromeOptions": {"args": arguments}}}})
        self.session = answer["sessionId"]
        self.browser_pid = answer["capabilities"].get("goog:processID")

    def wait_for_port(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and self.driver.poll() is None:
            self.log.seek(0)
            found = re.search(rb"started successfully on port (\d+)", self.log.read())
            if found:
                return int(found.group(1))
            time.sleep(0.05)
        self.log.seek(0)
        raise Failure("chromedriver does not start:", self.log.read().decode(errors="replace")[-1000:])

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=200)
        prefix = "/session/" + self.session if self.session else ""
        text = None if body is None else json.dumps(body)
        connection.request(method, prefix + path, text, {"Content-Type": "application/json"})
        value = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(value, dict) and "error" in value:
            raise Failure(method, path, value["error"], value["message"][:300])
        return value

    def run(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def pointer(self, x, y, clicks):
        moves = [{"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}]
        if clicks:
            moves += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self.ask("POST", "/actions", {"actions": [
            {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": moves}]})

    def keys(self, *keys, held=None):
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        if held:
            strokes = [{"type": "keyDown", "value": held}] + strokes + [{"type": "keyUp", "value": held}]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def open(self, path):
        self.ask("POST", "/url", {"url": "file://" + os.path.abspath(path)})

    def errors(self):
        return [entry["message"] for entry in self.ask("POST", "/se/log", {"type": "browser"})
                if entry["level"] in ("SEVERE", "WARNING")]

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.ask("GET", "/screenshot")))

    def end(self):
        try:
            if self.session:
                self.ask("DELETE", "")
        except (Failure, OSError, ValueError, http.client.HTTPException):
            # A browser that does not end when it is asked to.
            if self.browser_pid:
                os.kill(self.browser_pid, signal.SIGKILL)
        self.driver.kill()
        self.driver.wait()
        self.log.close()
