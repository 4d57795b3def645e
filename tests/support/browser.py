"""Headless Chromium, driven by the DevTools protocol over a pair of pipes."""

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WHY_NOT = None if CHROMIUM else "needs chromium"
LIMIT_S = 120.0
OPTIONS = [
    *("--headless", "--remote-debugging-pipe", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-crash-reporter"),
    *("--disable-extensions", "--no-first-run", "--hide-scrollbars"),
    # unavailable for root and on some CI machines; only our own pages are opened
    "--no-sandbox",
]
# an error that a page makes, by the event that reports it
COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


@dataclass
class Visit:
    """A page that was loaded."""

    browser: "Browser"
    session: str

    def call(self, method: str, **params: Any) -> Any:
        return self.browser.call(method, self.session, **params)

    def evaluate(self, script: str) -> Any:
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def events(self, *methods: str) -> list[dict[str, Any]]:
        own = [e for e in self.browser.events if e.get("sessionId") == self.session]
        return [event for event in own if event["method"] in methods]

    @property
    def asked(self) -> list[str]:
        requests = self.events("Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in requests]

    @property
    def complaints(self) -> list[str]:
        return [json.dumps(event)[:500] for event in self.events(*COMPLAINTS)]


class Browser:
    """A running Chromium; what lies in its pipes is answers and events, NUL between."""

    def __init__(self, into: int, out_of: int, log: Path) -> None:
        self._into, self._out_of, self._log = into, out_of, log
        self._read, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send a command and wait for its result; events before it are kept."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if session is not None:
            command["sessionId"] = session
        os.write(self._into, json.dumps(command).encode() + b"\0")
        while (message := self._next()).get("id") != self._number:
            pass
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def visit(
        self, address: str, *, width: int = 1440, scheme: str = "light", **media: Any
    ) -> Visit:
        """Load ``address`` in a window ``width`` pixels wide, in a color ``scheme``."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attach = {"targetId": target, "flatten": True}
        visit = Visit(self, self.call("Target.attachToTarget", **attach)["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Log"):
            visit.call(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        visit.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        visit.call("Emulation.setEmulatedMedia", features=features, **media)
        self.events.clear()
        visit.call("Page.navigate", url=address)
        while not visit.events("Page.loadEventFired"):
            self._next()
        return visit

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._read:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._out_of], [], [], max(left, 0))
            log = self._log.read_text(errors="replace")[-2000:]
            assert ready, f"chromium said nothing for {LIMIT_S:.0f} s: {log}"
            more = os.read(self._out_of, 1 << 16)
            assert more, f"chromium ended: {log}"
            self._read += more
        line, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message


@contextmanager
def browser() -> Iterator[Browser]:
    """Run Chromium with a temporary folder for all its files."""
    assert CHROMIUM is not None
    (to_it, into), (out_of, from_it) = os.pipe(), os.pipe()
    with ExitStack() as stack:
        for end in (into, out_of):
            stack.callback(os.close, end)
        # the path of a socket has at most 108 letters: a test's own folder is too deep
        own = TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)
        home = Path(stack.enter_context(own))
        log = stack.enter_context(open(home / "log.txt", "w"))
        # Chromium reads commands from descriptor 3 and answers on 4
        command = f'exec "$@" 3</dev/fd/{to_it} 4>/dev/fd/{from_it}'
        process = subprocess.Popen(
            ["sh", "-c", command, "sh", CHROMIUM, *OPTIONS, f"--user-data-dir={home}"],
            env={**os.environ, "HOME": str(home), "TMPDIR": str(home)},
            stdout=log,
            stderr=log,
            pass_fds=(to_it, from_it),
            start_new_session=True,
        )
        for end in (to_it, from_it):
            os.close(end)
        running = Browser(into, out_of, home / "log.txt")
        try:
            yield running
        finally:
            with suppress(AssertionError, OSError):
                running.call("Browser.close")
            with suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_S)
            # remaining processes of its group
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
