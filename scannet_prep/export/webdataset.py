"""WebDataset: tar shards in which the files of a scene follow each other and share what stands before the first dot.

train-000000.tar, ...:  scene0000_00.points.npy, scene0000_00.normals.npy, ..., scene0000_00.meta.json
"""

from __future__ import annotations

import json
import shutil
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from scannet_prep.export.format import ExportedScene, JoinedFormat, encode_npy
from scannet_prep.files import Buffer
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.scene import Split

SHARD_BYTES = 256_000_000


class WebDataset(JoinedFormat):
    """Shards of each split, of at most 256 MB (or one scene); the scenes of a space are spread over them."""

    name = "webdataset"

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the part of a scene: its tar members."""
        arrays = self.make_arrays(scene)
        description = json.dumps(json.loads(str(arrays.pop("meta")))).encode()
        members: dict[str, list[Buffer]] = {f"{key}.npy": encode_npy(array) for key, array in arrays.items()}
        members["meta.json"] = [description]
        pieces: list[Buffer] = []
        for name, content in members.items():
            info = tarfile.TarInfo(f"{scene.meta.scene_id}.{name}")  # mode 0644, no time, no owner
            info.size = sum(map(len, content))
            pieces += [info.tobuf(tarfile.USTAR_FORMAT), *content, bytes(-info.size % tarfile.BLOCKSIZE)]
        return ExportedScene({f"{scene.meta.scene_id}.tar": pieces})

    def plan_files(self, parts: Mapping[str, tuple[Split, int]]) -> Mapping[str, Sequence[str]]:
        """Deal the scenes of each split to shards, shuffled: a stream shows a few shards at a time."""
        shards: dict[str, list[str]] = {}
        for split in Split:
            room, number = 0, -1
            for scene_id in sorted(parts, key=lambda name: zlib.crc32(name.encode())):
                found, size = parts[scene_id]
                if found is split:
                    if size > room:
                        room, number = SHARD_BYTES - tarfile.RECORDSIZE, number + 1
                    shards.setdefault(f"{split}-{number:06d}.tar", []).append(scene_id)
                    room -= size
        return shards

    def join(self, path: Path, parts: Mapping[str, Path]) -> None:
        """Write a shard: the members, two blocks of zeros, and zeros up to a whole record."""
        with path.open("wb") as shard:
            for part in parts.values():
                with part.open("rb") as content:
                    shutil.copyfileobj(content, shard, 1 << 20)
            size = shard.tell() + 2 * tarfile.BLOCKSIZE
            shard.write(bytes(2 * tarfile.BLOCKSIZE + -size % tarfile.RECORDSIZE))
