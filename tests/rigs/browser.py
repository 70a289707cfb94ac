"""A real browser without a window, as a phone or a desk has it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rigs.checkout import ROOT
from rigs.needs import program
from rigs.page import Page
from rigs.waiting import until
from selenium import webdriver
from selenium.common.exceptions import (
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.service import Service

needs_browser = program("chromedriver", package="chromium-driver")
PHONE, DESK = (390, 844), (1280, 800)
NOT_THERE_YET = (
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
AXE = ROOT / ".venv/axe-playwright-python/0.1.8/axe_playwright_python/axe.min.js"
"""axe-core 4.12.1, in a folder of its own like the clients of tests/wyoming."""


class Browser:
    """One tab; `errors` is what its console complains of."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        for switch in (
            *("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"),
            *("hide-scrollbars", "disable-background-networking", "no-first-run"),
        ):
            options.add_argument(f"--{switch}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # the driver is Debian's: Selenium would look for one in the internet
        service = Service(shutil.which("chromedriver"))
        self.driver: Any = webdriver.Chrome(options, service)

    def resize(self, size: tuple[int, int], theme: str = "light") -> None:
        """The window's size in CSS pixels, and what the system prefers."""
        width, height = size
        self._order(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE},
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self._order("Emulation.setEmulatedMedia", {"features": features})

    def _order(self, command: str, arguments: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def forget(self) -> None:
        """Takes cookies and what a page has kept away."""
        self._order("Network.clearBrowserCookies", {})
        self.driver.get("about:blank")

    def enter(self, page: Page, view: str = "live") -> None:
        """Opens the view with the page's session."""
        self.forget()
        name, _, value = page.cookie.partition("=")
        cookie = {"name": name, "value": value, "url": page.url, "httpOnly": True}
        self._order("Network.setCookie", cookie)
        self.driver.get(f"{page.url}#{view}" if view != "live" else page.url)
        until(lambda: self.text(".pill") not in ("", "…"))

    def show(self, view: str) -> None:
        """Another view, as its link shows it."""
        self.run("location.hash = arguments[0]", view)
        name = view.partition("?")[0]
        until(
            lambda: self.run("return document.querySelector('[aria-current]').hash") == f"#{name}"
        )

    def run(self, script: str, *arguments: object) -> Any:
        """What JavaScript returns."""
        return self.driver.execute_script(script, *arguments)

    def fits(self) -> bool:
        """Return whether the page is no wider than the window."""
        root = "document.documentElement"
        return bool(self.run(f"return {root}.scrollWidth <= {root}.clientWidth"))

    def text(self, selector: str) -> str:
        """Return the text of the first such element that is shown; "" without one."""
        return next(iter(self.texts(selector)), "")

    def texts(self, selector: str) -> list[str]:
        """Return the text of each such element that is shown."""
        every = "[...document.querySelectorAll(arguments[0])]"
        shown = f"{every}.filter((one) => one.checkVisibility())"
        return list(self.run(f"return {shown}.map((one) => one.innerText)", selector))

    def value(self, identifier: str) -> str:
        """Return what the field with that id holds; "" without one."""
        return str(
            self.run("return document.getElementById(arguments[0])?.value || ''", identifier)
        )

    def press(self, selector: str, text: str = "") -> None:
        """Clicks the first such element with that text or label, where a finger would."""
        # one request for all of them: a list has a hundred buttons
        labelled = (
            "return [...document.querySelectorAll(arguments[0])].filter((one) =>"
            " (one.innerText || one.ariaLabel || '').includes(arguments[1]))"
        )

        def is_pressed() -> bool:
            try:
                for one in self.run(labelled, selector, text):
                    if one.is_displayed() and one.is_enabled():
                        self.run("arguments[0].scrollIntoView({block: 'center'})", one)
                        one.click()
                        return True
            except NOT_THERE_YET:
                pass  # the page was drawn anew meanwhile, and nothing was pressed
            return False

        until(is_pressed)

    def type(self, selector: str, text: str) -> None:
        """Puts `text` in place of what the field has, as a keyboard does."""
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys

        def is_typed() -> bool:
            try:
                field = self.driver.find_element(By.CSS_SELECTOR, selector)
                # as a person does: a field that the driver clears is filled again when the page is
                # drawn
                field.send_keys(Keys.CONTROL, "a")
                field.send_keys(text or Keys.DELETE)
            except NOT_THERE_YET:
                return False
            return True

        until(is_typed)

    def errors(self) -> list[str]:
        """What the console complained of since the last time, but for requests that failed."""
        entries: list[dict[str, str]] = self.driver.get_log("browser")
        found = [one["message"] for one in entries if one["level"] == "SEVERE"]
        return [one for one in found if "Failed to load resource" not in one]


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser of its own, with nothing kept."""
    one = Browser()
    try:
        yield one
    finally:
        one.driver.quit()


def axe() -> str:
    """Return the source of axe-core, which scripts/setup.sh installs; skips the test without it."""
    if not AXE.is_file():
        pytest.skip("not installed: axe-playwright-python (scripts/test installs it)")
    return AXE.read_text("utf-8")


def faults(one: Browser, source: str) -> list[str]:
    """What axe-core finds wrong with what is shown, one line each."""
    one.run(source)
    found = one.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations']}).then((found) => done(JSON.stringify("
        "found.violations.map((one) => [one.id, one.nodes.map((node) => node.html)]))))"
    )
    return [f"{name}: {shown[0][:200]}" for name, shown in json.loads(found)]
