"""A headless Chromium, driven over the pipes of its DevTools protocol: nothing to install but the browser."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe"),
)
ON_THREE_AND_FOUR = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for own, theirs in zip(ours, (3, 4)):
    os.dup2(own, theirs)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts the pipes on the descriptors on which the protocol is spoken; a shell may know no number above 9."""
SECONDS = 60.0
"""How long an answer may take; a machine that is busy starts a browser slowly."""


def find_chromium() -> str | None:
    """The browser's path, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A tab.

    Attributes:
        requests: the addresses of everything that was asked for.
        errors: what scripts failed with, and what the console was told of it.
    """

    def __init__(self, to: int, back: int, process: "subprocess.Popen[bytes]") -> None:
        self._to, self._back, self._process, self._number, self._read = to, back, process, 0, b""
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                assert "error" not in said, said
                return dict(said["result"])

    def _next(self) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        while b"\0" not in self._read:
            read = os.read(self._back, 1 << 16)
            assert read, f"the browser ended with {self._process.wait()}"
            self._read += read
        first, _, self._read = self._read.partition(b"\0")
        said: dict[str, Any] = json.loads(first)
        about = said.get("params", {})
        if said.get("method") == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif said.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))
        elif said.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(str(about["entry"]["text"]))
        return said

    def open(self, page: Path, width: int = 1000, height: int = 900, dark: bool = False, scripts: bool = True) -> None:
        """Load a file; pixels are those of the page."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.as_uri())
        end = time.monotonic() + SECONDS
        while self.value("document.readyState + location.href") != f"complete{page.as_uri()}":
            assert time.monotonic() < end, "the page was not loaded"
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after the other, by their names."""
        codes = {"Tab": 9, "Enter": 13, "Home": 36, "End": 35, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}
        for key in keys:
            text = {"Enter": "\r", " ": " "}.get(key)
            down = {"text": text} if text else {}
            for kind, more in (("keyDown", down), ("keyUp", {})):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **more)

    def screenshot(self, file: Path, whole: bool = True) -> None:
        """Write a PNG of the page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def chromium(path: str, profile: Path) -> Iterator[Page]:
    """A browser with one tab, until the context is left.

    Args:
        path: the browser.
        profile: an empty folder for what it writes.
    """
    their_in, to = os.pipe()
    back, their_out = os.pipe()
    command = [sys.executable, "-I", "-S", "-c", ON_THREE_AND_FOUR, str(their_in), str(their_out)]
    command += [path, *FLAGS, f"--user-data-dir={profile}"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(
        command, pass_fds=(their_in, their_out), env={**os.environ, "HOME": str(profile)}, **quiet
    )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Page(to, back, process)
    finally:
        os.close(to)  # it ends when nobody speaks to it
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(back)
