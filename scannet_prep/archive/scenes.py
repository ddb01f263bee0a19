"""Reads the scenes of one or several archives for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Literal

from scannet_prep.archive.layout import ArchiveKind, Group, Member, find_twice
from scannet_prep.archive.reader import Archive, read_member
from scannet_prep.archive.source import ByteSource, find_missing_shards
from scannet_prep.errors import ArchiveError, ManifestError, UsageError
from scannet_prep.processed.manifest import MANIFEST_NAME, SceneEntry, parse_manifest
from scannet_prep.processed.reader import check_split, warn_of_failures
from scannet_prep.processed.scene_source import SceneSource
from scannet_prep.scene import Split

# What a sample shows of how it was made; scenes that differ in it do not belong into one dataset.
_VISIBLE_OPTIONS = ("align_axis", "labels_from")


class ArchiveReader(SceneSource):
    """The scenes of one split of an archive, or of several together.

    Of what the archives say about themselves, only where the files of the split lie is kept.

    Args:
        archives: Paths, addresses, or objects that read the bytes; in any order.
        split: Which split.
        is_list: Whether they were named as a list, for messages.

    Raises:
        MissingFileError: There is no such archive.
        ArchiveError: An archive is damaged, holds no processed scenes, or does not go together with the others; or a
            shard of a set is missing.
        ManifestError: Processing had not finished when it was packed.
        UnknownSplitError: There are no scenes of that split.
        UsageError: There is no archive, or it has no address.
        TransferError: It is on a web server, which does not give it.
    """

    def __init__(self, archives: Sequence[str | Path | ByteSource], split: Split, *, is_list: bool = True) -> None:
        if not archives:
            raise UsageError("the list of archives is empty", "name a folder, an archive, or all of its shards")
        opened = [Archive(archive) for archive in archives]
        names = [archive.name for archive in opened]
        _check_archives(opened)
        found = sorted(
            (scene.scene_id, number, scene)
            for number, archive in enumerate(opened)
            for scene in archive.index.scenes
            if scene.split == split
        )
        vertex_counts = {name: scene.vertex_count for name, _, scene in found}
        failures = {
            scene_id: message
            for archive in opened
            for scene_id, message in archive.index.failures.items()
            if scene_id not in vertex_counts
        }
        super().__init__(names if is_list else names[0], split, vertex_counts, failures)
        present = {scene.split for archive in opened for scene in archive.index.scenes}
        check_split(self.name, split, present, f"pack them: scannet-prep process --splits {split}, then pack again")
        self._sources = [archive.source for archive in opened]
        places = [(opened[number], scene, f"{split}/{name}.npz") for name, number, scene in found]
        places += [(archive, archive.index.files, MANIFEST_NAME) for archive in opened]
        # The files of the scenes, then the manifest of each archive.
        self._files: list[tuple[ByteSource, Group, Member]] = []
        for archive, group, name in places:
            member = group.find(name)
            if member is None:
                raise ArchiveError(archive.name, f"{group.name}: has no file {name}", "pack it again")
            self._files.append((archive.source, replace(group, members=()), member))
        if failures:
            warn_of_failures(self.name, failures, f"scannet-prep info {names[0]} lists them")

    def file_path(self, index: int) -> str:
        """The file of a scene, for messages."""
        return f"{self._files[index][0].name}: {self._split}/{self.scene_id(index)}.npz"

    def how_to_add(self, scene_id: str) -> str:
        """What to type to get a scene that is missing."""
        return f"make it with scannet-prep process --scenes {scene_id}, then scannet-prep pack again"

    def read(self, index: int) -> memoryview:
        """Read the whole file of a scene, into memory that is nobody else's and writable.

        Raises:
            MissingFileError: The archive is gone.
            ArchiveError: The scene is damaged, or the archive is no longer the one that was opened.
            TransferError: The archive is on a web server, which does not give it.
        """
        return read_member(*self._files[index])

    def count_raw_ids(self, raw_ids_key: Literal["nyu40_ids", "scannet_ids"]) -> list[Mapping[int, int]] | None:
        """Vertices of each scene by raw id, from the manifests; None where they do not tell.

        Raises:
            ManifestError: A manifest is damaged.
            ArchiveError: It cannot be read.
            TransferError: The archive is on a web server, which does not give it.
        """
        names = self.scene_ids
        entries: dict[str, SceneEntry] = {}
        for source, group, member in self._files[len(self) :]:
            if entries.keys() >= set(names):
                break  # the shards of a set have all the same manifest
            data = bytes(read_member(source, group, member))
            entries.update(parse_manifest(data, f"{source.name}: {MANIFEST_NAME}").scenes)
        if not entries.keys() >= set(names):
            return None
        is_nyu40 = raw_ids_key == "nyu40_ids"
        return [entries[name].nyu40_counts if is_nyu40 else entries[name].scannet_counts for name in names]

    def close(self) -> None:
        """Close the archives; reading opens them again."""
        for source in self._sources:
            source.close()


def _check_archives(archives: Sequence[Archive]) -> None:
    """Check that archives hold processed scenes that were made in the same way, and go together."""
    first = archives[0]
    for archive in archives:
        index = archive.index
        if index.head.kind is not ArchiveKind.PROCESSED:
            hint = (
                f"make processed scenes from it: scannet-prep unpack {archive.name} -o data/ScanNet, then scannet-prep "
                "process, then scannet-prep pack"
            )
            raise ArchiveError(archive.name, "holds raw scenes, not processed ones", hint)
        if not index.head.is_complete:
            raise ManifestError(
                f"{archive.name}: {MANIFEST_NAME}",
                "says that processing had not finished when it was packed",
                "run the same scannet-prep process command again, then scannet-prep pack",
            )
        for key in _VISIBLE_OPTIONS:
            mine, theirs = first.index.head.options.get(key), index.head.options.get(key)
            if mine != theirs:
                raise ArchiveError(
                    archive.name,
                    f"holds scenes that were made with {key}={theirs}, those of {first.name} with {key}={mine}",
                    "name archives whose scenes were made with the same options",
                )
        if any(not scene.vertex_count for scene in index.scenes):
            raise ArchiveError(archive.name, "does not say how many vertices its scenes have", "pack it again")
    missing = find_missing_shards(archive.name for archive in archives)
    if missing:
        raise ArchiveError(
            first.name,
            f"belongs to a set of shards, of which {PurePosixPath(missing[0]).name} is missing",
            "name all shards: ScanNet(sorted(glob.glob('...-of-...tar.zst')), ...); a part that is to be used alone "
            "needs a name of its own",
        )
    for scene_id, holder, name in find_twice([(archive.name, archive.index) for archive in archives]):
        raise ArchiveError(name, f"holds {scene_id}, and so does {holder}", "name only one of them")
