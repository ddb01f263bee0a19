"""The same scenes in every form that `ScanNet` reads: a folder, an archive, shards, and an archive on the web."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from release_server import ReleaseServer

from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import pack, process
from scannet_prep.synthetic import write_release

KINDS = ("folder", "archive", "shards", "url")
# Those that most tests of the training source are run with.
SOURCES = ("folder", "archive")
SIZES = {
    "scene0000_00": 900, "scene0000_01": 520, "scene0000_02": 500, "scene0001_00": 700, "scene0002_00": 800,
    "scene0003_00": 540, "scene0005_00": 1500, "scene0006_00": 510, "scene0011_00": 600, "scene0707_00": 650,
}  # fmt: skip
TRAIN = [scene_id for scene_id in SIZES if scene_id < "scene0011"]


@dataclass(frozen=True)
class Stored:
    """Scenes, somewhere: in what form, what `ScanNet` is given, and the folder or the archives."""

    kind: str
    place: Any
    paths: tuple[Path, ...]


def make_folder(root: Path) -> Path:
    """Process synthetic scenes of the sizes above into a folder, beside their raw tree."""
    for scene_id, vertices in SIZES.items():
        write_release(root / "ScanNet", [scene_id], vertices=vertices)
    assert not process_into(root / "ScanNet", root / "processed").failures
    return root / "processed"


def process_into(raw_dir: Path, folder: Path) -> process.ProcessReport:
    return process.run(
        process.plan(raw_dir, folder, ProcessOptions(scannet200=True, faces=True)), jobs=1
    )


def pack_into(folder: Path, path: Path, shard_bytes: int | None = None) -> Path:
    """Pack a processed folder; shards may be smaller than users can ask for."""
    pack.run(folder, path, shard_bytes=shard_bytes)
    return path


@contextmanager
def store(kind: str, folder: Path, target: Path) -> Iterator[Stored]:
    """Put the scenes of a processed folder somewhere below another one, or serve them from there."""
    target.mkdir()
    path = target / "scannet.tar.zst"
    if kind == "folder":
        path = Path(shutil.copytree(folder, target / "processed"))
        yield Stored(kind, path, (path,))
        return
    pack_into(folder, path, 40_000 if kind == "shards" else None)
    paths = tuple(sorted(target.glob("*.tar.zst")))
    if kind == "shards":
        assert len(paths) >= 3
        yield Stored(kind, [paths[1], paths[0], *map(str, paths[2:])], paths)
    elif kind == "archive":
        yield Stored(kind, path, paths)
    else:
        with ReleaseServer(target, etag="weak") as server:
            server.files["/scannet.tar.zst"] = path
            yield Stored(kind, f"{server.origin}/{path.name}", paths)


def check_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """The same keys in the same order, with the same arrays, be they NumPy's or PyTorch's."""
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, list):
            assert found[key] == value, key
            continue
        one, other = np.asarray(found[key]), np.asarray(value)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), key
        is_same = (
            np.array_equal(one, other) if one.dtype.hasobject else one.tobytes() == other.tobytes()
        )
        assert is_same, key


def draw(sample: dict[str, Any], generator: np.random.Generator) -> list[int]:
    """What the generator gives."""
    return generator.integers(0, 1 << 30, 3).tolist()


def draw_in_sample(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    return sample | {"drawn": int(generator.integers(0, 1 << 30))}


def fail_on_third_scene(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    if sample["scene_id"] == "scene0000_02":
        raise ZeroDivisionError("no such voxel")
    return sample
