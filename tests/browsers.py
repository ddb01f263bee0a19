"""Pages in a real browser: Chromium without a display, drawing in software."""

import multiprocessing

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
# Addresses that are not requested from a server.
LOCAL = ("file:", "data:", "blob:", "about:")


class Shown:
    """A page of a scene in the browser."""

    def __init__(self, page):
        self.page = page

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
        script = "all => all.map((e) => [e.innerText, e.nextElementSibling.innerText])"
        return dict(self.page.locator(f"{selector} dt").evaluate_all(script))


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = find_program("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
        # Forked workers of a DataLoader have inherited the pipe to the driver of the browser, which
        # ends only when nobody has it open.
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join()


@pytest.fixture
def show(browser):
    """A function that opens a page. At the end, no page may have had errors or sent requests."""
    contexts = []
    problems = []

    def show(path, link="", *, script="", **options):
        context = browser.new_context(**({"viewport": SIZE, "color_scheme": "light"} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        if script:
            page.add_init_script(script)
        page.on("console", lambda each: each.type == "error" and problems.append(each.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda each: each.url.startswith(LOCAL) or problems.append(each.url))
        page.goto(path.as_uri() + link)
        return Shown(page)

    yield show
    for context in contexts:
        context.close()
    assert problems == []
