"""A headless Chromium that is told by its DevTools protocol, through a pipe, what a user does."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BINARY = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 300.0
"""How long anything may take."""


class Browser:
    """One page of a browser of its own. events: what it reported, as (method, params)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._profile = tempfile.mkdtemp()
        (there, self._out), (self._in, back) = os.pipe(), os.pipe()
        command = f'exec "$0" "$@" 3<&{there} 4>&{back}'  # the two that a browser talks through
        self._process = subprocess.Popen(
            ["bash", "-c", command, BINARY, *ARGUMENTS, f"--user-data-dir={self._profile}"],
            pass_fds=(there, back), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there)
        os.close(back)
        self._rest = b""
        self._number = 0
        self._session = ""
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and remove what it wrote."""
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **params: Any) -> Any:
        """Ask for something of the protocol and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0.0))
            assert ready, "the browser does not answer"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser is gone"
            self._rest += read
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message

    def screen(self, width: int, height: int, dark: bool = False, touch: bool = False) -> None:
        """Be a screen of this size; touch: of a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=touch,
        )  # fmt: skip
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch, maxTouchPoints=5)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])

    def open(self, path: Path) -> None:
        """Go to a page and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def read(self, expression: str) -> Any:
        """The value of a JavaScript expression, a promise's when it is there."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.read(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.05)

    def frames(self) -> None:
        """Until what was asked for is on the screen: charts draw in the frame after."""
        self.read(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))"
        )

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """One event of the mouse: `mouseMoved`, `mousePressed`, `mouseReleased`, `mouseWheel`."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press, move in a few steps, let go."""
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        for k in range(1, 9):
            x, y = (a + (b - a) * k / 8 for a, b in zip(start, end, strict=True))
            self.mouse("mouseMoved", x, y, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def swipe(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """The same with a finger."""

        def touch(kind: str, *points: tuple[float, float]) -> None:
            found = [{"x": x, "y": y} for x, y in points]
            self.call("Input.dispatchTouchEvent", type=kind, touchPoints=found)

        touch("touchStart", start)
        for k in range(1, 13):
            x, y = (a + (b - a) * k / 12 for a, b in zip(start, end, strict=True))
            touch("touchMove", (x, y))
        touch("touchEnd")

    def picture(self, path: Path, whole: bool = False) -> None:
        """A PNG of what is seen, or of the whole page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def paper(self, path: Path) -> None:
        """A PDF of the page as it prints."""
        found = self.call("Page.printToPDF", printBackground=True)
        path.write_bytes(base64.b64decode(found["data"]))

    @property
    def complaints(self) -> list[str]:
        """What went to the console, and exceptions."""
        found = []
        for method, params in self.events:
            if method == "Runtime.consoleAPICalled":
                found.append(" ".join(str(a.get("value", a)) for a in params["args"]))
            elif method == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            elif method == "Log.entryAdded":
                found.append(params["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """Whom the page asked for anything, the page itself and data in it left out."""
        asked = [p["request"]["url"] for m, p in self.events if m == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("data:", "file:", "blob:"))]
