"""A page in headless Chromium that is used with keys alone, over the browser's debugging pipe.

Keys are real input: what cannot be reached or pressed with them fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "ArrowRight": (39, "")}
SHIFT = 8


@dataclass
class Keyboard:
    """One page, and what is pressed in it."""

    out: BinaryIO
    back: BinaryIO
    session: str = ""
    number: int = 0
    buffer: bytes = field(default=b"")

    def call(self, method: str, **params: Any) -> Any:
        """A command of the browser's protocol, and its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self.session
        self.out.write(json.dumps(message).encode() + b"\0")
        self.out.flush()
        while True:
            answer = self._answer()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _answer(self) -> Any:
        while b"\0" not in self.buffer:
            read = os.read(self.back.fileno(), 65536)
            assert read, "Chromium has gone"
            self.buffer += read
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, page: Path) -> None:
        """Go to a page and wait until it is there."""
        self.call("Page.navigate", url=page.as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def until(self, script: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(script):
            assert time.monotonic() < end, script
            time.sleep(0.05)

    def press(self, key: str, shift: bool = False) -> None:
        """Press a key: one of `KEYS`, or a character."""
        code, text = KEYS.get(key, (0, key))
        about: dict[str, Any] = {"key": key, "modifiers": SHIFT * shift}
        if code:
            about |= {"windowsVirtualKeyCode": code, "code": {" ": "Space"}.get(key, key)}
        kind = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **about, **kind)
        self.call("Input.dispatchKeyEvent", **about, type="keyUp")

    def write(self, text: str) -> None:
        """Type characters."""
        for character in text:
            self.press(character)

    def tab_to(self, selector: str, shift: bool = False, most: int = 60) -> None:
        """Press Tab until an element has the focus."""
        for _ in range(most):
            if self.value(f"document.activeElement.matches({json.dumps(selector)})"):
                return
            self.press("Tab", shift)
        raise AssertionError(f"{selector} is not reached with {most} tabs")


@contextmanager
def keyboard(program: str, flags: tuple[str, ...], folder: Path) -> Iterator[Keyboard]:
    """A browser of its own; it ends with the block.

    Args:
        folder: of its profile, and `downloads` in it.
    """
    theirs_in, out = os.pipe()
    back, theirs_out = os.pipe()
    words = [program, *flags, "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"]
    # Chromium reads descriptor 3 and writes 4.
    line = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", line, "bash", *words, "about:blank"],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        with os.fdopen(out, "wb") as writer, os.fdopen(back, "rb") as reader:
            page = Keyboard(writer, reader)
            targets = page.call("Target.getTargets")["targetInfos"]
            target = next(each["targetId"] for each in targets if each["type"] == "page")
            found = page.call("Target.attachToTarget", targetId=target, flatten=True)
            page.session = found["sessionId"]
            downloads = str(folder / "downloads")
            page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=downloads)
            yield page
            page.call("Browser.close")
    finally:
        process.terminate()
        process.wait(timeout=20)
