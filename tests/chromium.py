"""Drives a headless Chromium, if there is one on this machine, by its DevTools protocol over a pair of pipes."""

import base64
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page in a browser of its own. Use it as a context manager.

    Attributes:
        errors: what its script threw, and what it wrote to the console as an error.
        requested: every address that it asked for.
    """

    def __init__(self, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        self.errors: list[str] = []
        self.requested: list[str] = []
        self._numbers, self._width, self._height, self._dark = itertools.count(1), width, height, dark

    def __enter__(self) -> "Page":
        program = chromium()
        assert program is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        options = [
            "--headless",
            "--hide-scrollbars",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]

        # Chromium reads from descriptor 3 and writes to descriptor 4. Ours may be 3 and 4 themselves, so they are moved first.
        command = f'exec 8<&{to_browser} 9>&{from_browser}; exec 3<&8 4>&9; exec "$0" "$@"'
        self._browser = subprocess.Popen(
            ["bash", "-c", command, program, *options],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._left, self._session = b"", None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=self._width,
            height=self._height,
            deviceScaleFactor=1,
            mobile=self._width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.terminate()
        self._browser.wait(60)
        os.close(self._write)
        os.close(self._read)

    def open(self, file: Path) -> None:
        """Load a file and wait until it is there."""
        self._loaded = False
        self._call("Page.navigate", url=file.resolve().as_uri())
        while not self._loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move_to(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Write a PNG of what is visible, or of the whole page."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            received = os.read(self._read, 1 << 16)
            assert received, "the browser has gone"
            self._left += received
        content, _, self._left = self._left.partition(b"\0")
        message = json.loads(content)
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]["exceptionDetails"]))
            case "Log.entryAdded" if message["params"]["entry"]["level"] == "error":
                self.errors.append(str(message["params"]["entry"]))
        return message
