"""A real browser on a real viewer: Chromium, driven by playwright, on `peergrad view` as people start it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
WAIT = 60_000  # milliseconds; only a hang takes as long

# Set by every payload that runs, whichever way; `caught` also counts what the policy of the page refused.
CANARY = """
window.caught = [];
addEventListener("securitypolicyviolation", (event) => window.caught.push(event.violatedDirective + " " + event.blockedURI));
"""


def chromium() -> str | None:
    """Where Chromium is, if it is anywhere."""
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


class Viewer:
    """One page of the browser, and all that went wrong on it."""

    def __init__(self, browser: Any, home: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.home, self.wrong = home, list[str]()
        scheme: Any = "dark" if dark else "light"
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.context.set_default_timeout(WAIT)
        self.page = self.context.new_page()
        self.page.add_init_script(CANARY)
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", self._requested)
        self.page.on("popup", lambda popup: self.wrong.append(f"popup: {popup.url}"))
        self.page.goto(home)

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(f"{kind}: {text}")

    def _requested(self, request: Any) -> None:
        origin = re.sub(r"(?<=\w)/.*", "", self.home) if self.home.startswith("http") else "file:"
        if not request.url.startswith((origin, "data:,")):
            self.wrong.append(f"request: {request.url[:200]}")

    def go(self, route: str, ready: str = "main") -> None:
        """Follow an address within the page, and wait until what it is about is there."""
        self.page.evaluate("(route) => { location.hash = route }", route)
        self.page.wait_for_function("(route) => location.hash === route || decodeURI(location.hash) === route", arg=route)
        self.wait(ready)

    def wait(self, selector: str, state: Any = "visible") -> None:
        self.page.wait_for_selector(selector, state=state)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something in the page that a selector can't say."""
        for _ in range(WAIT // 50):
            if condition():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError("it did not come to pass")

    def text(self, selector: str = "main") -> str:
        return self.page.inner_text(selector)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def check(self) -> None:
        """Nothing ran that is not ours, nothing was asked for elsewhere, nothing was refused or failed."""
        assert self.page.evaluate("window.pwned") is None
        assert self.page.evaluate("window.caught") == []
        assert not self.wrong, self.wrong

    def close(self) -> None:
        self.context.close()


@contextmanager
def served(*paths: Path, cache: Path, cwd: Path | None = None) -> Iterator[str]:
    """`peergrad view` on these folders; gives its address."""
    command = [sys.executable, "-m", "peergrad", "view", *map(str, paths), "--no-open"]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment, cwd=cwd)
    try:
        assert process.stdout
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"http://\S+", line):
                yield found[0]
                break
        else:
            raise AssertionError(f"it did not say where it is: {said}")
    finally:
        process.terminate()
        process.wait()
        if process.stdout:
            process.stdout.close()
