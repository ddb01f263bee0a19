"""A raw and a processed tree of three small scenes, made once, copied for each test."""

import shutil
from pathlib import Path

import pytest
from verifying import SCENES, Verify

from scannet_prep.cli.main import main
from scannet_prep.synthetic import write_release


@pytest.fixture(scope="session")
def whole_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    write_release(directory / "raw", SCENES, vertices=600)
    assert main(["process", str(directory / "raw"), "-o", str(directory / "processed"), "-q", "--jobs", "1"]) == 0
    return directory


@pytest.fixture
def raw_dir(whole_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_dir / "raw", tmp_path / "raw"))


@pytest.fixture
def out_dir(whole_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_dir / "processed", tmp_path / "processed"))


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    return Verify(capsys)
