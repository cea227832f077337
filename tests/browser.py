"""A headless Chromium that a test drives over two pipes, by the DevTools protocol."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Browser:
    """One page of a browser."""

    def __init__(self, to: int, back: int) -> None:
        self.to, self.back = to, os.fdopen(back, "rb")
        self.session: str | None = None
        self.number = 0
        self.log: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == self.number:
                assert "error" not in reply, (method, reply["error"])
                return reply["result"]

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self.back.read(1)) not in (b"\0", b""):
            text += byte
        assert text, "the browser has ended"
        message = json.loads(text)
        if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.log.append(json.dumps(message["params"])[:2000])
        return message

    def open(self, page: Path, width: int = 1280, *, dark: bool = False) -> None:
        """Open a file at a width, in light or dark."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=844 if phone else 800, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, (script, result["exceptionDetails"], self.log)
        return result["result"].get("value")

    def wait(self, condition: str, seconds: float = 30) -> None:
        """Wait until an expression in the page is true."""
        done = self.run(
            f"""new Promise((resolve) => {{
                const end = Date.now() + {1000 * seconds};
                const look = () => {{
                    let value = false;
                    try {{ value = {condition}; }} catch {{}}
                    if (value || Date.now() > end) resolve(Boolean(value));
                    else setTimeout(look, 20);
                }};
                look();
            }})"""
        )
        assert done, (condition, self.run("document.body.innerText.slice(-2000)"), self.log)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field, as typing does."""
        self.run(
            f"""{{
                const field = document.querySelector({json.dumps(selector)});
                field.value = {json.dumps(text)};
                field.dispatchEvent(new Event('input', {{ bubbles: true }}));
            }}"""
        )

    def click(self, selector: str) -> None:
        """Press a button."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def picture(self, file: Path) -> None:
        """Write a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))


@contextmanager
def browser(profile: Path, language: str = "en") -> Generator[Browser]:
    """Start a browser, and end it; skip the test where there is none."""
    name = next(filter(None, map(shutil.which, NAMES)), None)
    if name is None:
        pytest.skip("no Chromium: `apt-get install chromium`")
    theirs, to = os.pipe()
    back, theirs_back = os.pipe()

    def pipes() -> None:
        copies = os.dup(theirs), os.dup(theirs_back)  # neither is 3 or 4 itself
        os.dup2(copies[0], 3)
        os.dup2(copies[1], 4)

    command = [
        name, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
        f"--lang={language}", f"--accept-lang={language}", f"--user-data-dir={profile}",
        "--disable-dev-shm-usage", "--no-first-run", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        preexec_fn=pipes,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LANGUAGE": language},
    )
    os.close(theirs)
    os.close(theirs_back)
    opened = Browser(to, back)
    try:
        yield opened
    finally:
        process.terminate()
        process.wait(30)
        os.close(to)
        opened.back.close()
