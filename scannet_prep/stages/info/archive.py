"""What is in archives: from their indexes, and from the manifest in the first frame. No scene is decompressed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.layout import Head
from scannet_prep.archive.reader import open_archives
from scannet_prep.archive.source import Place, find_missing_shards
from scannet_prep.class_weights import ClassTable, make_class_tables
from scannet_prep.errors import FileError
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.scene import Split
from scannet_prep.stages.finding import Finding
from scannet_prep.stages.info.trees import count_by_split


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """What is in one archive, or in the shards of one.

    Attributes:
        paths: Paths or addresses of the archives.
        kind: `archive`.
        head: What the first of them says of itself: what it was made from and how, by which program, the terms.
        scene_ids: The scenes, sorted.
        files: How many files, without those that describe the archives themselves.
        size_bytes: Size of the archives.
        content_bytes: Size of the tar bytes.
        splits: By split (`none` where nobody knows it, `all` for the sum) how many `scenes` and `vertices`, and their
            size in the archives (`stored_bytes`) and unpacked (`size_bytes`).
        failures: Why scenes are missing that were asked for, by id.
        missing_shards: Shards that are needed to make the set whole.
        unreadable: What could not be read now, and why.
        label_sets: How often the classes of each label set occur, if there is a manifest.
    """

    paths: tuple[str, ...]
    kind: str
    head: Head
    scene_ids: tuple[str, ...]
    files: int
    size_bytes: int
    content_bytes: int
    splits: dict[str, dict[str, int]] = field(hash=False)
    failures: Mapping[str, str] = field(hash=False)
    missing_shards: tuple[str, ...]
    unreadable: tuple[Finding, ...]
    label_sets: dict[str, ClassTable] = field(hash=False)


def read_archives(archives: Sequence[Place], *, certificates: bool | Path = True) -> ArchiveInfo:
    """Find out what is in archives.

    Args:
        archives: Paths, addresses, or objects that read the bytes.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.

    Raises:
        ArchiveError: One is truncated, damaged at its end, or was written by something else.
        ScanNetPrepError: What `open_archives` raises.
    """
    opened = open_archives(archives, certificates=certificates)
    names, indexes = tuple(archive.name for archive in opened), [archive.index for archive in opened]
    groups = [group for index in indexes for group in index.groups]
    scenes = {group.scene_id: group for group in groups if group.scene_id}
    entries, unreadable = dict[str, SceneEntry](), list[Finding]()
    for archive in opened:  # the manifests of shards name all scenes, and are the same
        try:
            entries |= archive.read_entries()
        except FileError as error:
            unreadable.append(Finding.from_exception(error, archive.name))
        archive.close()
    present = [entries[name] for name in sorted(scenes.keys() & entries.keys())]
    annotated = [(entry.nyu40_counts, entry.scannet_counts) for entry in present if entry.split is not Split.TEST]
    counts = [
        (it.split or None, {"vertices": it.vertex_count, "stored_bytes": it.stored_bytes, "size_bytes": it.size_bytes})
        for it in scenes.values()
    ]
    return ArchiveInfo(
        paths=names,
        kind="archive",
        head=indexes[0].head,
        scene_ids=tuple(sorted(scenes)),
        files=sum(len(group.members) for group in groups) - len(indexes),
        size_bytes=sum(archive.source.size_bytes for archive in opened),
        content_bytes=sum(group.size_bytes for group in groups),
        splits=count_by_split(counts),
        failures={name: text for index in indexes for name, text in index.failures.items() if name not in scenes},
        missing_shards=find_missing_shards(names),
        unreadable=tuple(unreadable),
        label_sets=make_class_tables(annotated) if entries else {},
    )
