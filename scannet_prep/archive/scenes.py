"""Reads the scenes of one or several archives for training."""

from __future__ import annotations

from collections.abc import Sequence
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
from scannet_prep.processed.reader import SceneSource, check_split, warn_of_failures
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
        held = [(archive, scene) for archive in opened for scene in archive.index.scenes]
        wanted = [item for item in held if split in (None, item[1].split)]
        scenes = sorted(wanted, key=lambda item: item[1].scene_id)
        vertex_counts = {scene.scene_id: scene.vertex_count for _, scene in scenes}
        messages = [item for archive in opened for item in archive.index.failures.items()]
        failures = {scene_id: message for scene_id, message in messages if scene_id not in vertex_counts}
        super().__init__(names if is_list else names[0], vertex_counts, failures)
        if split is not None:
            hint = f"pack them: scannet-prep process --splits {split}, then pack again"
            check_split(self.name, split, {scene.split for _, scene in held}, hint)
        self._scenes = scenes
        self._archives = opened
        for archive in opened:  # of the groups, only those of the split stay
            archive.index = replace(archive.index, groups=archive.index.groups[:1])
        if failures and split is not None:
            warn_of_failures(self.name, failures, f"scannet-prep info {quote(names[0])} lists them")

    def restrict(self, indices: NDArray[np.int64]) -> None:
        """Keep only the scenes at these positions, which are ascending; one may come several times."""
        super().restrict(indices)
        self._scenes = [self._scenes[index] for index in indices.tolist()]

    def file_path(self, index: int) -> str:
        """The file of a scene, for messages."""
        archive, scene = self._scenes[index]
        return f"{archive.name}: {scene.members[0].name}"

    def how_to_add(self, scene_id: str) -> str:
        """What to type to get a scene that is missing."""
        return f"make it with scannet-prep process --scenes {scene_id}, then scannet-prep pack again"

    def read(self, index: int) -> memoryview:
        """Read the whole file of a scene, into memory that is nobody else's and writable."""
        archive, scene = self._scenes[index]
        return archive.read_member(scene, scene.members[0])

    def read_entries(self) -> dict[str, SceneEntry] | None:
        """What the manifests say of the scenes, by id; None where they do not tell of all."""
        names, entries = self.scene_ids, dict[str, SceneEntry]()
        for archive in self._archives:
            if not entries.keys() >= set(names):  # the shards of a set have all the same manifest
                entries |= archive.read_entries()
        return {name: entries[name] for name in names} if entries.keys() >= set(names) else None

    def close(self) -> None:
        """Close the archives; reading opens them again."""
        for archive in self._archives:
            archive.close()


def check_archives(archives: Sequence[Archive]) -> None:
    """Check that archives hold processed scenes that were made in the same way, and go together.

    Raises:
        ArchiveError: They do not, or a shard of a set is missing.
    """
    first = archives[0]
    for archive in archives:
        index = archive.index
        if index.head.kind is not ArchiveKind.PROCESSED:
            hint = f"scannet-prep unpack {quote(archive.name)} -o data/ScanNet, then scannet-prep process and pack"
            raise ArchiveError(archive.name, "holds raw scenes, not processed ones", hint)
        for key in ("align_axis", "labels_from"):  # a sample shows them: they do not go together in one dataset
            mine, theirs = first.index.head.options.get(key), index.head.options.get(key)
            if mine != theirs:
                problem = f"holds scenes that were made with {key}={theirs}, those of {first.name} with {key}={mine}"
                raise ArchiveError(archive.name, problem, "name archives whose scenes were made with the same options")
    missing = find_missing_shards(archive.name for archive in archives)
    if missing:
        problem = f"belongs to a set of shards, of which {missing[0]} is missing"
        hint = "name all shards: ScanNet(sorted(glob.glob('...-of-...tar.zst')), ...); a part that is to be used alone "
        raise ArchiveError(first.name, problem, f"{hint}needs a name of its own")
