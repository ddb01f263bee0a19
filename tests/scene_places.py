"""The same scenes in every place that `ScanNet` reads from: a folder, an archive, shards, and an archive on the web."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from archives import pack_shards, pack_tree
from release_server import ROOT, ReleaseServer

from scannet_prep.archive import open_archive
from scannet_prep.remote import ranges

KINDS = ("folder", "archive", "shards", "url")
ARCHIVE_KINDS = KINDS[1:]


@dataclass(frozen=True)
class Stored:
    """Scenes, somewhere.

    Attributes:
        kind: In what form; one of KINDS.
        place: What `ScanNet` is given.
        paths: The folder, or the archives.
    """

    kind: str
    place: Any
    paths: tuple[Path, ...]

    @classmethod
    def store(cls, kind: str, folder: Path, target: Path) -> Self:
        """Put the scenes of a processed folder somewhere below another one; on the web: in a file, see `serve`."""
        target.mkdir()
        if kind == "folder":
            path = Path(shutil.copytree(folder, target / "processed"))
            return cls(kind, path, (path,))
        path = target / "scannet.tar.zst"
        if kind in ("archive", "url"):
            pack_tree(folder, path).close()
            return cls(kind, path, (path,))
        paths = tuple(pack_shards(folder, path, 30_000))
        assert len(paths) >= 3
        return cls(kind, [paths[1], paths[0], *map(str, paths[2:])], paths)

    @contextmanager
    def serve(self) -> Iterator[Self]:
        """Serve it where it is to be on the web."""
        if self.kind != "url":
            yield self
            return
        # Of archives as small as these, all scenes would come with the end, and no range would be asked for.
        with ReleaseServer(self.paths[0].parent) as server, pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranges, "TAIL_BYTES", 8_192)
            server.files[f"{ROOT}scannet.tar.zst"] = self.paths[0]
            yield type(self)(self.kind, f"{server.origin}{ROOT}scannet.tar.zst", self.paths)

    def damage(self, scene_id: str) -> None:
        """Flip a bit in the middle of a scene."""
        for path in self.paths:
            if self.kind == "folder":
                (file,) = path.rglob(f"{scene_id}.npz")
                flip(file, 1_000)
                return
            with open_archive(path) as archive:
                scene = archive.index.find(scene_id)
            if scene is not None:
                flip(path, scene.offset + scene.stored_bytes // 2)
                return
        raise AssertionError(scene_id)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)
