"""One headless Chromium for all tests that look at pages. `from browser import browser` makes the fixture known."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",  # containers have little of it
    # Whatever a page might ask for elsewhere has no address.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PATIENCE = 30.0
"""Seconds until a condition that should come true counts as never."""


class Browser:
    """What a test does with a page: open it, look, act, and hear what the page asked for and complained about."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1280, height: int = 900, theme: str = "light", ready: bool = True) -> None:
        """Load a page as a window of this size and a system of this theme show it, from a clean slate."""
        self.drain()
        self.size(width, height)
        preferences = [
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferences})
        self.driver.get("about:blank")  # a change of the fragment alone would not load the page again
        self.drain()
        self.driver.get(url)
        if ready:
            self.wait(lambda: self.js("return document.documentElement.dataset.ready === 'yes'"), "the page is drawn")
            self.settle()

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def js(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def settle(self) -> None:
        """Wait for two frames: what was asked for is then drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What the element says, shown or not."""
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def click(self, selector: str) -> None:
        element = self.find(selector)
        self.js("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self.settle()

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"still not so after {PATIENCE:g} s: {what}; the console says {self.complaints()}")

    def drain(self) -> None:
        self.driver.get_log("browser")
        self.driver.get_log("performance")

    def complaints(self) -> list[str]:
        """Messages in the console since the page was opened: errors, warnings, refused policies."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened, the page itself included."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def accessibility_findings(self) -> list[str]:
        """What axe-core finds serious or critical."""
        self.js(AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(
            """const done = arguments[0], failed = e => done([{ impact: "critical", id: String(e), nodes: [] }]);
            axe.run(document).then(found => done(found.violations), failed)"""
        )
        return [
            f"{finding['impact']}: {finding['id']} at {[node['html'][:160] for node in finding['nodes'][:3]]}"
            for finding in found
            if finding["impact"] in ("serious", "critical")
        ]


@cache
def _start() -> tuple[Browser, str]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        reason = "needs Chromium and its driver: apt-get install chromium chromium-driver"
        if os.environ.get("GRADIENT_FLOW_CI") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    profile = tempfile.mkdtemp(prefix="chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    driver.set_script_timeout(PATIENCE)
    return Browser(driver), profile


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The same browser for every test of the session, also when several files import this."""
    started, profile = _start()
    yield started
    _start.cache_clear()
    started.driver.quit()
    for _ in range(50):  # its last processes write for a moment after it has answered
        shutil.rmtree(profile, ignore_errors=True)
        if not os.path.exists(profile):
            break
        time.sleep(0.1)
