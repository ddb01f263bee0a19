"""What is in archives: from their indexes, and from the manifest in the first frame. No scene is decompressed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.layout import Group
from scannet_prep.archive.reader import open_archives, read_entries
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
        path: Path or address of the first archive.
        paths: Of all.
        kind: `archive`.
        archive_kind: `processed` or `raw`, or both, if somebody mixed them.
        scenes: How many scenes.
        scene_ids: The scenes, sorted.
        files: How many files, without those that describe the archives themselves.
        size_bytes: Size of the archives.
        content_bytes: Size of the tar bytes.
        splits: By split (`none` where nobody knows it, `all` for the sum) how many `scenes` and `vertices`, and their
            size in the archives (`stored_bytes`) and unpacked (`size_bytes`).
        options: How processed scenes were made; empty for others.
        programs: Names and versions of the programs that wrote the archives.
        levels: Compression levels.
        complete: Whether processing had come to its end when they were packed.
        failures: Why scenes are missing that were asked for, by id.
        missing_shards: Shards that are needed to make the set whole.
        unreadable: What could not be read now, and why.
        label_sets: How often the classes of each label set occur, if there is a manifest.
    """

    path: str
    paths: tuple[str, ...]
    kind: str
    archive_kind: str
    scenes: int
    scene_ids: tuple[str, ...]
    files: int
    size_bytes: int
    content_bytes: int
    splits: dict[str, dict[str, int]] = field(hash=False)
    options: Mapping[str, bool | str] = field(hash=False)
    programs: tuple[str, ...]
    levels: tuple[int, ...]
    complete: bool
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
    names = tuple(archive.name for archive in opened)
    indexes = [archive.index for archive in opened]
    heads = [index.head for index in indexes]
    groups = [group for index in indexes for group in index.groups]
    scenes = {group.scene_id: group for group in groups if group.scene_id}
    held = sorted(scenes)
    entries, unreadable = dict[str, SceneEntry](), list[Finding]()
    for archive in opened:  # the manifests of shards name all scenes, and are the same
        try:
            entries |= read_entries(archive.source, archive.index.files) or {}
        except FileError as error:
            unreadable.append(Finding.from_exception(error, archive.name, ""))
        archive.close()
    present = [entries[name] for name in held if name in entries]
    annotated = [(entry.nyu40_counts, entry.scannet_counts) for entry in present if entry.split is not Split.TEST]
    return ArchiveInfo(
        path=names[0],
        paths=names,
        kind="archive",
        archive_kind=" and ".join(sorted({str(head.kind) for head in heads})),
        scenes=len(scenes),
        scene_ids=tuple(held),
        files=sum(len(group.members) for group in groups) - len(indexes),
        size_bytes=sum(archive.source.size_bytes for archive in opened),
        content_bytes=sum(group.size_bytes for group in groups),
        splits=count_by_split((scene.split or None, _count(scene)) for scene in scenes.values()),
        options=heads[0].options,
        programs=tuple(sorted({head.program for head in heads})),
        levels=tuple(sorted({head.level for head in heads})),
        complete=all(head.is_complete for head in heads),
        failures={name: text for index in indexes for name, text in index.failures.items() if name not in held},
        missing_shards=find_missing_shards(names),
        unreadable=tuple(unreadable),
        label_sets=make_class_tables(annotated) if entries else {},
    )


def _count(scene: Group) -> dict[str, int]:
    return {"vertices": scene.vertex_count, "stored_bytes": scene.stored_bytes, "size_bytes": scene.size_bytes}
