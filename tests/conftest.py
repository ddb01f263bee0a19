"""A raw and a processed tree of three small scenes, made once, copied for each test."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from archives import TREE, pack_tree, write_tree
from commands import SCENES, Verify, run_main
from hypothesis import settings
from training_sources import KINDS, SOURCES, Stored, make_folder, pack_into, store

from scannet_prep.synthetic import write_release

pytest_plugins = ["browsers", "downloads"]  # fixtures

# Machines are shared and slow at times. In CI, the same examples each time: what is new is for people to look at.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Processes that are started by `forkserver` have this already; optimizers would import the second when they are used.
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

# What a shell starts in the background ignores SIGINT; if that is the tests, the commands they interrupt would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The servers of the tests are on this machine.
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


@pytest.fixture(scope="session")
def whole_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    write_release(directory / "raw", SCENES, vertices=600)
    assert run_main("process", directory / "raw", "-o", directory / "processed").status == 0
    return directory


@pytest.fixture
def raw_dir(whole_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_dir / "raw", tmp_path / "raw"))


@pytest.fixture
def out_dir(whole_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_dir / "processed", tmp_path / "processed"))


@pytest.fixture
def verify() -> Verify:
    return Verify()


@pytest.fixture(scope="session")
def training_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="session", params=SOURCES)
def source(request: pytest.FixtureRequest, training_folder: Path) -> Path:
    """What a dataset is opened with, in each form that there is."""
    is_folder = request.param == "folder"
    return (
        training_folder
        if is_folder
        else pack_into(training_folder, training_folder.with_name("scannet.tar.zst"))
    )


@pytest.fixture(scope="module", params=KINDS)
def stored(
    request: pytest.FixtureRequest, training_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stored]:
    """Not to be changed."""
    with store(request.param, training_folder, tmp_path_factory.mktemp("stored") / "x") as stored:
        yield stored


@pytest.fixture
def folder(training_folder: Path, tmp_path: Path) -> Path:
    """May be changed."""
    return Path(shutil.copytree(training_folder, tmp_path / "processed"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "tree", TREE)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    pack_tree(write_tree(tmp_path / "source", TREE), tmp_path / "a.tar.zst")
    return tmp_path / "a.tar.zst"


@pytest.fixture(scope="session")
def packed_dir(whole_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("packed")
    pack_tree(whole_dir / "processed", directory / "processed.tar.zst")
    pack_tree(whole_dir / "raw", directory / "raw.tar.zst")
    return directory


@pytest.fixture
def archive_path(packed_dir: Path, tmp_path: Path) -> Path:
    """Of the processed folder; may be changed."""
    return Path(shutil.copy(packed_dir / "processed.tar.zst", tmp_path / "scannet.tar.zst"))
