"""Reads the scenes of one or several archives for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.archive.reader import Archive, open_archives
from scannet_prep.archive.source import Place, find_missing_shards
from scannet_prep.errors import ArchiveError, UsageError
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.reader import SceneSource
from scannet_prep.scene import Split


class ArchiveReader(SceneSource):
    """The scenes of one split of an archive, or of several together.

    Of what the archives say about themselves, only where the files of the split lie is kept.

    Args:
        archives: Paths, addresses, or objects that read the bytes; in any order.
        split: Which split; None for all.
        is_list: Whether they were named as a list, for messages.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.

    Raises:
        ArchiveError: An archive is damaged, holds no processed scenes, or does not go together with the others; or a
            shard of a set is missing.
        UnknownSplitError: There are no scenes of that split.
        ScanNetPrepError: What `open_archives` raises.
    """

    def __init__(
        self, archives: Sequence[Place], split: Split | None, *, is_list: bool = True, certificates: bool | Path = True
    ) -> None:
        if not archives:
            raise UsageError("the list of archives is empty", "name a folder, an archive, or all of its shards")
        opened = open_archives(archives, certificates=certificates)
        names = [archive.name for archive in opened]
        check_archives(opened)
        held = {scene.scene_id: (archive, scene) for archive in opened for scene in archive.index.scenes}
        failures = {name: text for archive in opened for name, text in archive.index.failures.items()}
        scenes = {name: (scene.split, scene.vertex_count) for name, (_, scene) in held.items()}
        place = names if is_list else names[0]
        super().__init__(place, scenes, failures, split, ", then scannet-prep pack again")
        self._scenes, self._archives = [held[name] for name in self.scene_ids], opened
        for archive in opened:  # of the groups, only those of the split stay
            archive.index = replace(archive.index, groups=archive.index.groups[:1])

    def restrict(self, indices: NDArray[np.int64]) -> None:
        """Keep only the scenes at these positions, which are ascending; one may come several times."""
        super().restrict(indices)
        self._scenes = [self._scenes[index] for index in indices.tolist()]

    def file_path(self, index: int) -> str:
        """The file of a scene, for messages."""
        archive, scene = self._scenes[index]
        return f"{archive.name}: {scene.members[0].name}"

    def read(self, index: int) -> memoryview:
        """Read the whole file of a scene, into memory that is nobody else's and writable."""
        archive, scene = self._scenes[index]
        return archive.read_member(scene, scene.members[0])

    def _read_manifest(self) -> Mapping[str, SceneEntry]:
        entries = dict[str, SceneEntry]()
        for archive in self._archives:
            if not entries.keys() >= set(self.scene_ids):  # the shards of a set have all the same manifest
                entries |= archive.read_entries()
        return entries

    def close(self) -> None:
        """Close the archives; reading opens them again."""
        for archive in self._archives:
            archive.close()


def check_archives(archives: Sequence[Archive]) -> None:
    """Check that archives hold processed scenes that were made in the same way, and go together.

    Raises:
        ArchiveError: They do not, or a shard of a set is missing.
    """
    for archive in archives:
        if archive.index.head.kind is not ArchiveKind.PROCESSED:
            hint = f"scannet-prep unpack {quote(archive.name)}, then scannet-prep process, and pack again"
            raise ArchiveError(archive.name, "holds raw scenes, not processed ones", hint)
        for key in ("align_axis", "labels_from"):  # a sample shows them: they do not go together in one dataset
            mine, theirs = (item.index.head.options.get(key) for item in (archives[0], archive))
            if mine != theirs:
                problem = f"holds scenes that were made with {key}={theirs}, {archives[0].name} with {key}={mine}"
                raise ArchiveError(archive.name, problem, "name archives whose scenes were made with the same options")
    if missing := find_missing_shards(archive.name for archive in archives):
        hint = "name all shards: sorted(glob.glob('...-of-...tar.zst')); a part to be used alone needs another name"
        raise ArchiveError(archives[0].name, f"belongs to a set of shards, of which {missing[0]} is missing", hint)
