"""Pages in a real browser: Chromium without a display, drawing in software."""

from dataclasses import dataclass
from typing import Any

import pytest
from extras import find_program

needs_browser = pytest.mark.extra("chromium", "playwright")

ARGUMENTS = [
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--no-sandbox",
    "--renderer-process-limit=1",
]
SIZE = {"width": 900, "height": 500}


@dataclass
class Shown:
    """A page of a scene in the browser."""

    page: Any

    def wait(self):
        """Wait until the whole picture is drawn."""
        self.page.wait_for_selector("canvas[aria-busy=false]")
        return self

    def run(self, script, *words):
        """Run a function of JavaScript, and return its result when the picture is drawn."""
        result = self.page.evaluate(script, *words)
        self.wait()
        return result

    def click(self, selector):
        self.page.locator(selector).first.click()
        self.wait()

    def press(self, *keys):
        """Press keys while the picture has the focus."""
        self.page.locator("#picture").focus()
        for key in keys:
            self.page.keyboard.press(key)
        self.wait()

    def rows(self, selector):
        """Return the terms and descriptions of a list that is shown."""
        self.page.locator(selector).wait_for(state="visible")
        names = self.page.locator(f"{selector} dt").all_inner_texts()
        texts = self.page.locator(f"{selector} dd").all_inner_texts()
        return dict(zip(names, texts, strict=True))


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = find_program("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def show(browser):
    """A function that opens a page. At the end, no page may have had errors or sent requests."""
    contexts = []
    problems = []

    def note(kind, is_problem=lambda _: True):
        def add(event):
            if is_problem(event):
                problems.append((kind, str(getattr(event, "text", event))))

        return add

    def show(path, link="", *, script="", **options):
        defaults = {"viewport": SIZE, "color_scheme": "light", "accept_downloads": True}
        context = browser.new_context(**(defaults | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        if script:
            page.add_init_script(script)
        page.on("console", note("console", lambda message: message.type == "error"))
        page.on("pageerror", note("error"))
        page.on("dialog", note("dialog"))
        page.on("request", note("request", lambda each: not each.url.startswith(LOCAL)))
        page.goto(path.as_uri() + link)
        return Shown(page)

    yield show
    for context in contexts:
        context.close()
    assert problems == []


# Addresses that are not requested from a server.
LOCAL = ("file:", "data:", "blob:", "about:")
