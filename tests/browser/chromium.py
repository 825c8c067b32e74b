"""A headless Chromium that tests steer through the pipe of its DevTools protocol, with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
_DEADLINE_S = 120.0


def chromium() -> str | None:
    """Return the path of the browser; ``None`` where none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page; it ends with the ``with`` block.

    Args:
        path: of the browser.
        profile: folder for its profile.
    """

    def __init__(self, path: str, profile: Path) -> None:
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        words = [path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
        # The browser reads commands from its descriptor 3 and writes answers to 4.
        moved = f'exec 3<&{their_in} 4>&{their_out}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", moved, "bash", *words, "--remote-debugging-pipe", "about:blank"],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setScrollbarsHidden", hidden=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def open(self, page: Path, *, width: int = 1100, dark: bool = False) -> None:
        """Open a page of the disk at a width in pixels, and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="", features=scheme)
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + _DEADLINE_S
        while not any(each["method"] == "Page.loadEventFired" for each in self.events):
            self._take(deadline)

    def run(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, *, code: int, text: str = "") -> None:
        """Press a key where the focus is."""
        given = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **given, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def problems(self) -> list[str]:
        """Return the errors and warnings of the page, and what it asked for besides itself."""
        found = []
        for each in self.events:
            given = each["params"]
            if each["method"] == "Runtime.exceptionThrown":
                found.append(str(given["exceptionDetails"]))
            elif each["method"] == "Log.entryAdded":
                found.append(given["entry"]["text"])
            elif each["method"] == "Network.requestWillBeSent" and given["type"] != "Document":
                found.append(given["request"]["url"])
            elif each["method"] == "Page.javascriptDialogOpening":
                found.append(f"dialog {given['message']}")
        return found

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the page, and return its answer."""
        return self._call(method, session=self._session, **parameters)

    def _call(self, method: str, *, session: str | None = None, **parameters: object) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            answer = self._take(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _take(self, deadline: float) -> dict[str, Any]:
        """Return the next message; an event is kept."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            read = os.read(self._in, 1 << 16) if ready else b""
            assert read, "the browser does not answer"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        if "method" in found:
            self.events.append(found)
        return found
