"""A headless Chromium for the benchmark of the dashboard: how soon a page is drawn, seen from the browser."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1440,900"),
)
DRAWN = """
const done = arguments[0];
const later = action => requestAnimationFrame(() => requestAnimationFrame(action));
const look = () => {
  const canvas = document.getElementById("map-canvas");
  const drawn = document.documentElement.dataset.map === "drawn";
  if (drawn && canvas.getBoundingClientRect().height > 0) later(() => done(performance.now()));
  else setTimeout(look, 5);
};
look();
"""
"""Calls back two frames after the map was drawn: it is then on the screen."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, already started; None where there is none on this machine."""
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        yield None
        return
    from selenium import webdriver

    profile = tempfile.mkdtemp(prefix="chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_script_timeout(120)
    try:
        browser.get("about:blank")
        yield browser
    finally:
        browser.quit()
        shutil.rmtree(profile, ignore_errors=True)


def seconds_until_drawn(browser: Any, url: str) -> float:
    """From asking for the page to the first map on the screen."""
    start = time.perf_counter()
    browser.get(url)
    browser.execute_async_script(DRAWN)
    return time.perf_counter() - start
