"""A Chromium that tests steer through a pair of pipes, by its own protocol and without a library."""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
PATIENCE_S = 120


class Tab:
    """One page in the browser.

    Attributes:
        requests: the addresses of everything that the page has requested.
        complaints: what the browser has reported: errors and violated policies.
    """

    def __init__(self, commands: IO[bytes], messages: IO[bytes]) -> None:
        self._commands, self._messages, self._numbers = commands, messages, itertools.count(1)
        self._session: dict[str, str] = {}
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Network", "Log", "Runtime", "DOM"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **parameters: object) -> Any:
        """What a command of the protocol returns."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters} | self._session
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        while True:
            message = json.loads(b"".join(iter(lambda: self._messages.read(1), b"\0")))
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]
            self._notice(message)

    def _notice(self, event: dict[str, Any]) -> None:
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        if event["method"] == "Log.entryAdded":
            self.complaints.append(event["params"]["entry"]["text"])
        if event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]["exceptionDetails"]))

    def open(self, url: str, width: int) -> None:
        """Goes to a page, in a window of this width."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.do("Emulation.setDeviceMetricsOverride", **metrics)
        self.do("Page.navigate", url=url)
        self.until("document.readyState == 'complete'")

    def type(self, selector: str, text: str) -> None:
        """Replaces what stands in a field."""
        self.value(f"document.querySelector({json.dumps(selector)}).select()")
        self.do("Input.insertText", text=text)

    def choose_file(self, selector: str, path: Path) -> None:
        """Gives a file to the page."""
        root = self.do("DOM.getDocument")["root"]["nodeId"]
        node = self.do("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.do("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript has for a value."""
        result = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """What stands in all elements of a kind."""
        found: list[str] = self.value(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")
        return found

    def until(self, expression: str) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)


@contextmanager
def browser_tab(folder: Path) -> Iterator[Tab]:
    """A browser with one page; its profile goes into the folder."""
    assert PROGRAM is not None
    (its_end, commands), (messages, other_end) = os.pipe(), os.pipe()
    reads, writes = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (its_end, other_end))
    line = f'exec "$@" 3<&{reads} 4>&{writes}'  # where it looks for them; only bash has numbers of two digits
    program = ["bash", "-c", line, "bash", PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(program, pass_fds=(reads, writes), stderr=subprocess.DEVNULL)
    for end in (its_end, other_end, reads, writes):
        os.close(end)
    try:
        with os.fdopen(commands, "wb") as to, os.fdopen(messages, "rb") as back:
            yield Tab(to, back)
    finally:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
