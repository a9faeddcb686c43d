"""A headless Chromium over its own pipe: opens a page from disk, says what it logged and asked for, takes pictures.

Only what a machine has is used; nothing is downloaded. The DevTools protocol is JSON, a NUL behind each message, on the
file descriptors 3 and 4 of the browser.
"""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--hide-scrollbars",
)  # fmt: skip


def find_chromium() -> str | None:
    """The browser's path, None where the machine has none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of a browser."""

    def __init__(self, write_to: int, read_from: int) -> None:
        self.logged: list[str] = []
        """Errors, exceptions and whatever the page wrote to its console."""
        self.requested: list[str] = []
        self._out, self._in = os.fdopen(write_to, "wb"), os.fdopen(read_from, "rb")
        self._n, self._session, self._buffer = 0, None, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of one command; what happens meanwhile is noted."""
        self._n += 1
        message = {"id": self._n, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._n:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: Path, dark: bool = False, width: int = 1180) -> None:
        """Load a file and wait for it."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def printed(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._in.fileno(), 1 << 16)
            assert chunk, "the browser ended"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif method == "Log.entryAdded":
            self.logged.append(parameters["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.logged.append(json.dumps(parameters))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page of a browser whose profile lies in an empty folder."""
    command = find_chromium()
    assert command is not None
    read_theirs, write_ours = os.pipe()
    read_ours, write_theirs = os.pipe()

    script = f'exec "$@" 3<&{read_theirs} 4>&{write_theirs}'
    flags = [*FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", command, *flags],
        pass_fds=(read_theirs, write_theirs),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_theirs)
    os.close(write_theirs)
    try:
        yield Page(write_ours, read_ours)
    finally:
        process.terminate()
        process.wait(timeout=20)
