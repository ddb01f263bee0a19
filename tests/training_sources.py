"""The same scenes in every form that `ScanNet` reads: folder, archive, and URL."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from release_server import ReleaseServer

from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import pack, process
from scannet_prep.synthetic import write_release

KINDS = ("folder", "archive", "url")
# The forms with which most tests of the dataset are run.
SOURCES = ("folder", "archive")
# Vertices of each scene.
SIZES = {
    "scene0000_00": 900,
    "scene0000_01": 520,
    "scene0000_02": 500,
    "scene0001_00": 700,
    "scene0002_00": 800,
    "scene0003_00": 540,
    "scene0005_00": 1500,
    "scene0006_00": 510,
    "scene0011_00": 600,
    "scene0707_00": 650,
}
TRAIN = [scene_id for scene_id in SIZES if scene_id < "scene0011"]


@dataclass(frozen=True)
class Stored:
    """Scenes in one of the forms.

    Attributes:
        kind: One of `KINDS`.
        place: The argument of `ScanNet`.
        paths: The folder, or the archive.
    """

    kind: str
    place: Any
    paths: tuple[Path, ...]


def make_folder(root):
    """Process synthetic scenes of the sizes above into a folder, beside their raw tree."""
    for scene_id, vertices in SIZES.items():
        write_release(root / "ScanNet", [scene_id], vertices=vertices)
    report = process_into(root / "ScanNet", root / "processed")
    assert not report.failures
    return root / "processed"


def process_into(raw_dir, folder):
    options = ProcessOptions(scannet200=True, faces=True)
    return process.run(process.plan(raw_dir, folder, options), jobs=1)


def pack_into(folder, path):
    """Pack a processed folder."""
    pack.run(folder, path)
    return path


@contextmanager
def store(kind, folder, target):
    """Copy or pack the scenes of a processed folder into another one, or serve them from there."""
    target.mkdir()
    if kind == "folder":
        copy = Path(shutil.copytree(folder, target / "processed"))
        yield Stored(kind, copy, (copy,))
        return

    path = pack_into(folder, target / "scannet.tar.zst")
    if kind == "archive":
        yield Stored(kind, path, (path,))
    else:
        with ReleaseServer(target) as server:
            server.etag = "weak"
            server.files["/scannet.tar.zst"] = path
            yield Stored(kind, f"{server.origin}/{path.name}", (path,))


def check_same(actual, expected):
    """Check keys, their order, types and values. Arrays may be NumPy's or PyTorch's."""
    assert list(actual) == list(expected)
    for key, expected_value in expected.items():
        if isinstance(expected_value, list):
            assert actual[key] == expected_value, key
        else:
            _check_same_array(np.asarray(actual[key]), np.asarray(expected_value), key)


def _check_same_array(actual, expected, key):
    assert actual.dtype == expected.dtype, key
    assert actual.shape == expected.shape, key
    if actual.dtype.hasobject:
        assert np.array_equal(actual, expected), key
    else:
        # Bytes, so that NaN equals NaN, and 0.0 differs from -0.0.
        assert actual.tobytes() == expected.tobytes(), key


def draw(sample, generator):
    """Transform that returns three numbers of the generator."""
    return generator.integers(0, 1 << 30, 3).tolist()


def draw_in_sample(sample, generator):
    """Transform that adds a number of the generator to the sample."""
    return sample | {"drawn": int(generator.integers(0, 1 << 30))}


def fail_on_third_scene(sample, generator):
    if sample["scene_id"] == "scene0000_02":
        raise ZeroDivisionError("no such voxel")
    return sample


def epochs_of(loader, epochs):
    """Iterate over the batches of several epochs."""
    for epoch in epochs:
        loader.batch_sampler.set_epoch(epoch)
        yield from loader
