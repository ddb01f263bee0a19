"""The same scenes in every form that `ScanNet` reads, for tests that must hold for all of them."""

from __future__ import annotations

from pathlib import Path

from archives import pack_tree
from commands import run_command

from scannet_prep.synthetic import write_release

# The kinds of source; each has a branch in `make_source`.
SOURCES = ("folder", "archive")
SIZES = {
    "scene0000_00": 900, "scene0000_01": 520, "scene0000_02": 500, "scene0001_00": 700, "scene0002_00": 800,
    "scene0003_00": 540, "scene0005_00": 1500, "scene0006_00": 510, "scene0011_00": 600, "scene0707_00": 650,
}  # fmt: skip
TRAIN = [scene_id for scene_id in SIZES if scene_id < "scene0011"]


def make_folder(root: Path) -> Path:
    """Process synthetic scenes of the sizes above into a folder."""
    for scene_id, vertices in SIZES.items():
        write_release(root / "ScanNet", [scene_id], vertices=vertices)
    outcome = run_command("process", root / "ScanNet", "-o", root / "processed", "--scannet200", "--jobs", "1")
    assert outcome.status == 0, outcome.stderr
    return root / "processed"


def make_source(kind: str, folder: Path) -> Path:
    """Make what a dataset is opened with from a processed folder."""
    if kind == "folder":
        return folder
    path = folder.with_name("scannet.tar.zst")
    pack_tree(folder, path).close()
    return path
