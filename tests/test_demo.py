"""The demo: from an empty folder to a dataset, with commands that can be pasted at the end."""

import os
import sys
from pathlib import Path
from shlex import quote

import pytest
from commands import PAGES, fail, run_main, run_words, succeed

from scannet_prep import ScanNet
from scannet_prep.frames import FrameFolder


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder in which the demo ran twice, the second time in an active environment."""
    folder = tmp_path_factory.mktemp("demo")
    environment = tmp_path_factory.mktemp("environment")
    (environment / "scannet-prep").touch(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.defpath)
        first = run_main("demo", cwd=folder)
        patch.setenv("PATH", str(environment), prepend=os.pathsep)
        patch.setattr(sys, "executable", str(environment / "python3"))
        again = run_main("demo", "--json", cwd=folder)
    return folder, first, again


def test_demo_takes_scenes_through_every_stage(demo):
    folder, first, again = demo
    demo_dir = folder / "data/demo"

    assert (first.status, first.stderr) == (0, "")
    assert "109 made, 0 already there" in first.stdout
    assert [*again.json["steps"]][1].endswith(": 0 made, 109 already there")
    assert (demo_dir / "scene.png").read_bytes().startswith(b"\x89PNG")
    assert (demo_dir / "scene.html").read_bytes().startswith(b"<!doc")
    assert len(FrameFolder(demo_dir / "frames").scene_ids) == 3
    for name in ("ScanNet", "processed", "scannet.tar.zst", "frames"):
        succeed("verify", demo_dir / name)
    succeed("process", demo_dir / "ScanNet", "--compute-segments", "-o", folder / "segments")
    words = ("--gt", demo_dir / "processed", "-o", folder / "semantic.zip")
    submission = succeed("submit", demo_dir / "predictions/test", *words)
    assert "ScanNet200, test: 100 scenes" in submission.stdout
    # As in the release, the scenes cannot be stacked.
    lengths = ScanNet(demo_dir / "processed", split="train").lengths.tolist()
    assert len(set(lengths)) == len(lengths) == 6


def test_commands_at_the_end_of_the_demo_can_be_pasted_and_are_those_of_readme(demo):
    folder, first, again = demo
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    printed = ""

    for short in again.json["commands"]:
        assert short in PAGES["README.md"].splitlines()
        command = short.replace("scannet-prep", "python -m scannet_prep")
        command = command.replace("python", quote(sys.executable), 1)
        assert f"\n{command}\n" in first.stdout
        printed += succeed("sh", "-c", command, cwd=folder, env=environment, run=run_words).stdout

    assert (folder / "data/demo/errors.html").exists()
    assert "'labels': int64" in printed
    assert "ScanNet200, val: 3 of 312 scenes" in printed

    activate = Path(sys.executable).with_name("activate")
    assert (f"source {quote(str(activate))}" in first.stdout.splitlines()) == activate.is_file()
    real = [line for line in first.stdout.splitlines() if line.startswith("scannet-prep ")]
    assert real[0] == "scannet-prep download --types seg --accept-terms"
    assert all(command in PAGES["README.md"] for command in real)


def test_demo_refuses_folder_that_it_did_not_make(tmp_path):
    (tmp_path / "ScanNet").mkdir()

    fail(2, "was not made by the demo", "demo", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ScanNet"]
