"""The demo: from an empty folder to a dataset, with commands for the real data at the end."""

import sys

from commands import run_main

from scannet_prep.cli.main import make_parser
from scannet_prep.frames import FrameFolder


def test_demo_takes_scenes_through_every_stage(tmp_path, monkeypatch):
    # Without an active environment.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    demo_dir = tmp_path / "data/demo"

    outcome = run_main("demo", cwd=tmp_path)

    assert outcome.status == 0
    assert outcome.stderr == ""
    assert "11 made, 0 already there" in outcome.stdout
    assert (demo_dir / "scene.png").read_bytes().startswith(b"\x89PNG")
    assert (demo_dir / "scene.html").read_bytes().startswith(b"<!doc")
    assert len(FrameFolder(demo_dir / "frames")) == 3
    for name in ("ScanNet", "processed", "frames"):
        assert run_main("verify", demo_dir / name).status == 0

    lines = [line.strip() for line in outcome.stdout.splitlines()]
    commands = [line for line in lines if line.startswith("scannet-prep ")]
    assert commands[0] == "scannet-prep download --types seg --accept-terms"
    for command in commands:
        make_parser().parse_args(command.split()[1:])
    # Without an active environment, they only work after this one.
    line_before = lines[lines.index(commands[0]) - 1]
    assert line_before == f"source {sys.prefix}/bin/activate"

    outcome = run_main("demo", "--json", cwd=tmp_path)
    assert outcome.json["process"]["made"] == []


def test_demo_refuses_folder_that_it_did_not_make(tmp_path):
    (tmp_path / "ScanNet").mkdir()

    outcome = run_main("demo", tmp_path)

    assert outcome.status == 2
    assert "was not made by the demo" in outcome.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ScanNet"]
