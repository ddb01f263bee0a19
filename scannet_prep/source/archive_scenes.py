"""The processed scenes of archives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote

from scannet_prep.archive.layout import ArchiveKind, StoredGroup
from scannet_prep.archive.opened import Archive
from scannet_prep.archive.shards import find_missing_shards
from scannet_prep.base.findings import Finding
from scannet_prep.errors import ArchiveError
from scannet_prep.processed.manifest import MANIFEST_NAME, SceneEntry, parse_manifest
from scannet_prep.processed.scene import FORMAT_VERSION, ProcessOptions
from scannet_prep.release.scene import Split
from scannet_prep.source.identify import SourceKind
from scannet_prep.source.scenes import SceneSource

# The end of the command that makes more scenes and puts them into the archive.
_HINT_THEN_PACK = ", then scannet-prep pack again"


class ArchiveScenes(SceneSource):
    """The processed scenes of one or several archives: all of them, or one split.

    The groups of other scenes are removed from the indexes, to save memory.

    Args:
        archives: The archives, in any order.
        split: The split whose scenes to open; None for all scenes.

    Raises:
        ArchiveError: An archive holds raw scenes, belongs to an incomplete set of shards, or holds
            scenes whose options differ from the first archive's.
        UsageError: There are no scenes of that split.
    """

    kind = SourceKind.ARCHIVE

    def __init__(self, archives: Sequence[Archive], split: Split | None) -> None:
        names = [archive.name for archive in archives]
        for archive in archives:
            _check_is_processed(archive)
        options = _read_shared_options(archives)
        _check_has_all_shards(names)

        stored: dict[str, tuple[Archive, StoredGroup]] = {}
        failures: dict[str, Finding] = {}
        for archive in archives:
            for group in archive.index.scenes:
                stored[group.scene_id] = (archive, group)
            for scene_id, message in archive.index.failures.items():
                command = f"scannet-prep process --scenes {scene_id}"
                hint = f"make it: {command}{_HINT_THEN_PACK}"
                failures[scene_id] = Finding(scene_id=scene_id, message=message, hint=hint)
        # The base class needs the groups only. To read a scene, its archive is needed as well.
        groups = {scene_id: group for scene_id, (_, group) in stored.items()}
        super().__init__(
            place=names if len(names) > 1 else names[0],
            options=options,
            held=groups,
            failures=failures,
            split=split,
            command_end=_HINT_THEN_PACK,
        )
        self._archives = archives
        # Only the scenes of the split are read. The base class has put them into `lengths`.
        self._stored = {scene_id: stored[scene_id] for scene_id in self.lengths}
        # The groups of the other scenes are no longer needed.
        for archive in archives:
            archive.forget_scenes()

    def file_path(self, scene_id: str) -> str:
        """Return the archive of a scene and the name of the scene's file in it, for messages."""
        archive, group = self._stored[scene_id]
        return f"{archive.name}: {group.members[0].name}"

    def read(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene into new, writable memory."""
        archive, group = self._stored[scene_id]
        return archive.read_member(group, group.members[0])

    def read_entries(self) -> Mapping[str, SceneEntry]:
        """Read the entries of the manifests in the archives."""
        entries = dict[str, SceneEntry]()
        for archive in self._archives:
            # All shards of a set have the same manifest, so the first one usually suffices.
            has_all_entries = self.lengths.keys() <= entries.keys()
            if has_all_entries:
                break
            # The first group of an archive holds the files that belong to no scene.
            shared_files = archive.index.groups[0]
            for member in shared_files.members:
                if member.name == MANIFEST_NAME:
                    data = bytes(archive.read_member(shared_files, member))
                    entries |= parse_manifest(data, f"{archive.name}: {MANIFEST_NAME}").scenes
        return entries

    def close(self) -> None:
        """Close the archives; reading opens them again."""
        for archive in self._archives:
            archive.source.close()


def _check_is_processed(archive: Archive) -> None:
    """Refuse an archive of raw scenes, or of processed scenes in another format."""
    head = archive.index.head
    if head.kind is not ArchiveKind.PROCESSED:
        command = f"scannet-prep unpack {quote(archive.name)}"
        hint = f"{command}, then scannet-prep process, and pack again"
        raise ArchiveError(archive.name, "holds raw scenes, not processed ones", hint)
    if head.scene_format != FORMAT_VERSION:
        problem = f"its scenes have format {head.scene_format}, expected {FORMAT_VERSION}"
        raise ArchiveError(archive.name, problem, "process and pack them again")


def _read_shared_options(archives: Sequence[Archive]) -> ProcessOptions:
    """Return the options that the scenes of all archives were made with.

    Raises:
        ArchiveError: The archives differ in their options, or one does not record them.
    """
    first = archives[0]
    options = first.index.head.options
    if options is None:
        problem = "does not record the options of its scenes"
        raise ArchiveError(first.name, problem, "pack the folder again")
    for archive in archives[1:]:
        other_options = archive.index.head.options
        if other_options != options:
            flags = "unknown options" if other_options is None else other_options.flags
            raise ArchiveError(
                archive.name,
                f"holds scenes that were made with {flags}, but {first.name} with {options.flags}",
                "name archives whose scenes were made with the same options",
            )
    return options


def _check_has_all_shards(names: Sequence[str]) -> None:
    """Refuse archives that are shards of a set if other shards of it are missing."""
    missing = find_missing_shards(names)
    if missing:
        raise ArchiveError(
            names[0],
            f"belongs to a set of shards, of which {missing[0]} is missing",
            "name all shards: sorted(glob.glob('NAME-*-of-*.tar.zst')); "
            "to use a single shard alone, rename it",
        )
