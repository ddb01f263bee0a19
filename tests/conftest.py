"""Fixtures, and what tests need beyond the packages that `tools/test` installs.

    @pytest.mark.extra("torch", "zstd")    this test needs PyTorch and the program zstd
    pytest -m extra                        all tests that need more, and no others

A test is skipped where something that it needs is missing. No test may be skipped in any other way,
unless the reason begins with `this`, as in `this machine has no FUSE`.
"""

import importlib.util
import multiprocessing
import os
import shutil
import signal
from functools import cache
from pathlib import Path

import pytest
from commands import (
    ACTIONLINT_DIR,
    REAL_DIR,
    SCENES,
    TREE,
    find_program,
    make_processed,
    pack_tree,
    write_tree,
)
from hypothesis import settings
from release_server import ReleaseServer, make_private_authority
from training import KINDS, SOURCES, make_folder, pack_into, store

from scannet_prep.synthetic import write_release

# All other names are those of Python modules.
PROGRAMS = frozenset({
    "bsdtar", "chromium", "fish", "hadolint", "nginx", "node", "zsh", "zstd"
})  # fmt: skip


@cache
def is_there(name):
    """Whether this machine has what a test names in its marker `extra`."""
    if name == "real data":
        return (REAL_DIR / "scans/scene0000_00").is_dir()
    if name == "actionlint":
        return ACTIONLINT_DIR.exists()
    if name in PROGRAMS:
        return find_program(name) is not None
    return importlib.util.find_spec(name) is not None


def find_needs(item):
    """Collect the names in all markers `extra` of a test."""
    return {name for mark in item.iter_markers("extra") for name in mark.args}


# No deadlines, because machines are shared and slow at times. CI tries the same examples each time,
# so that a change does not fail because of a fault that was there before.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Processes of the fork server have these modules from the start. Optimizers import `torch._dynamo`
# when they are first used.
multiprocessing.set_forkserver_preload(
    [
        "torch.distributed",
        "torch._dynamo",
        "lightning",
        "accelerate",
        "pytest",
        "scannet_prep.stages.process",
    ]
)

# A shell starts background jobs with SIGINT ignored, and the commands that tests interrupt would
# inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The servers of the tests are on this machine: no proxies, and no certificates but their own.
for name in (
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
):
    os.environ.pop(name, None)
    os.environ.pop(name.lower(), None)


def pytest_collection_modifyitems(items):
    """Let one worker of xdist run all tests in the browser, and another one those with PyTorch.

    So one worker starts a browser, and only few load PyTorch into their fork servers. Each worker
    gets an equal part of the list, and begins at its start. Workers that have finished take tests
    from the ends of the parts of others.
    """
    worker_count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    in_browser = []
    with_torch = []
    others = []
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            in_browser.append(item)
        elif "torch" in find_needs(item):
            with_torch.append(item)
        else:
            others.append(item)

    part_size = len(items) // worker_count
    rest_of_first_part = max(0, part_size - len(in_browser))
    items[:] = [
        *in_browser,
        *others[:rest_of_first_part],
        *with_torch,
        *others[rest_of_first_part:],
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip a test whose marker names something that is not here, before its fixtures are made."""
    missing = sorted(name for name in find_needs(item) if not is_there(name))
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def check_skip(report, *, is_marked):
    """Let a test fail that skips without the marker, so that CI would never run it."""
    if report.skipped and not is_marked and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2]
        if not reason.startswith("Skipped: this "):
            report.outcome = "failed"
            report.longrepr = f"{reason}\nName what the test needs in its marker `extra`."


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    check_skip(report, is_marked=bool(find_needs(item)))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    # A module that is skipped when it is imported has no marker yet, but its text does.
    is_marked = report.skipped and "pytestmark = pytest.mark.extra(" in collector.path.read_text()
    check_skip(report, is_marked=is_marked)
    return report


@pytest.fixture(scope="session")
def whole_dir(tmp_path_factory):
    """A raw tree, `raw`, and a processed folder, `processed`; not to be changed."""
    directory = tmp_path_factory.mktemp("whole")
    make_processed(directory, SCENES, vertices=600)
    return directory


@pytest.fixture
def raw_dir(whole_dir, tmp_path):
    """A copy of the raw tree."""
    return Path(shutil.copytree(whole_dir / "raw", tmp_path / "raw"))


@pytest.fixture
def out_dir(whole_dir, tmp_path):
    """A copy of the processed folder."""
    return Path(shutil.copytree(whole_dir / "processed", tmp_path / "processed"))


@pytest.fixture(scope="session")
def training_folder(tmp_path_factory):
    """A processed folder for training; not to be changed."""
    return make_folder(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="session", params=SOURCES)
def source(request, training_folder):
    """Argument of a dataset: the processed folder, or an archive of it."""
    if request.param == "folder":
        return training_folder
    return pack_into(training_folder, training_folder.with_name("scannet.tar.zst"))


@pytest.fixture(scope="module", params=KINDS)
def stored(request, training_folder, tmp_path_factory):
    """The scenes for training, stored in one of several forms; not to be changed."""
    with store(request.param, training_folder, tmp_path_factory.mktemp("stored") / "x") as stored:
        yield stored


@pytest.fixture
def folder(training_folder, tmp_path):
    """A copy of the processed folder for training."""
    return Path(shutil.copytree(training_folder, tmp_path / "processed"))


@pytest.fixture
def tree(tmp_path):
    """A folder with a few small files."""
    return write_tree(tmp_path / "tree", TREE)


@pytest.fixture
def packed(tmp_path):
    """An archive of a few small files."""
    pack_tree(write_tree(tmp_path / "source", TREE), tmp_path / "a.tar.zst")
    return tmp_path / "a.tar.zst"


@pytest.fixture(scope="session")
def packed_dir(whole_dir, tmp_path_factory):
    """Archives of the raw tree and of the processed folder; not to be changed."""
    directory = tmp_path_factory.mktemp("packed")
    pack_tree(whole_dir / "processed", directory / "processed.tar.zst")
    pack_tree(whole_dir / "raw", directory / "raw.tar.zst")
    return directory


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A private authority, and a file with a certificate that it has signed."""
    return make_private_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def release_dir(tmp_path_factory):
    """A release that tests do not change. Each scene has another number of vertices."""
    release_dir = tmp_path_factory.mktemp("release")
    for number, scene_id in enumerate(SCENES):
        write_release(release_dir, [scene_id], vertices=3_000 + 100 * number)
    return release_dir


@pytest.fixture
def server(release_dir):
    """A server of that release."""
    with ReleaseServer(release_dir) as server:
        yield server


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

    def __getattr__(self, name):
        """Return what the page of the browser has."""
        return getattr(self.page, name)

    def wait(self):
        """Wait until the whole picture is drawn."""
        self.wait_for_selector("canvas[aria-busy=false]")
        return self

    def run(self, script, *words):
        """Run a function of JavaScript, and return its result when the picture is drawn."""
        result = self.evaluate(script, *words)
        self.wait()
        return result

    def click(self, selector):
        self.locator(selector).first.click()
        self.wait()

    def press(self, *keys):
        """Press keys while the picture has the focus."""
        self.locator("#picture").focus()
        for key in keys:
            self.keyboard.press(key)
        self.wait()

    def rows(self, selector):
        """Return the terms and descriptions of a list that is shown."""
        self.locator(selector).wait_for(state="visible")
        script = "all => all.map((e) => [e.innerText, e.nextElementSibling.innerText])"
        return dict(self.locator(f"{selector} dt").evaluate_all(script))


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
        page.set_default_timeout(120_000)
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
