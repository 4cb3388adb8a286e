"""A headless Chromium of the system for the tests of the page ``/ui``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
LONG_MS = 60_000
"""Of a wait for something that comes in a moment, on a machine that has something else to do."""

_MISSING = "Failed to load resource"
"""What the console says of every refused request, expected or not."""


@contextmanager
def browser() -> Iterator[Browser]:
    """One process, headless. Skips the test where there is no Chromium."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    arguments = ["--disable-dev-shm-usage"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # which Chromium refuses to be without otherwise
    expect.set_options(timeout=LONG_MS)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=arguments)
        yield running
        running.close()


@dataclass
class Tab:
    """A page, and what has gone wrong in it."""

    page: Page
    faults: list[str] = field(default_factory=list)

    def note(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(_MISSING):
            self.faults.append(message.text)


@contextmanager
def tab(
    running: Browser, width: int = 1280, height: int = 800, scheme: str = "light"
) -> Iterator[Page]:
    """A page with a storage of its own. Fails behind an error of the page's code, or against its
    policy."""
    context = running.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    context.set_default_timeout(LONG_MS)
    opened = Tab(context.new_page())
    opened.page.on("console", opened.note)
    opened.page.on("pageerror", lambda error: opened.faults.append(str(error)))
    try:
        yield opened.page
        assert opened.faults == []
    finally:
        context.close()
