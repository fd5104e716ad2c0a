"""A Chromium that is installed on this machine, for tests of pages; none is downloaded."""

import shutil
from collections.abc import Iterator

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser() -> Iterator:
    """A headless browser; skips the test where there is none."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"needs a browser on the path, one of {', '.join(BROWSERS)}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=path)
        yield running
        running.close()
