"""What is in archives: from their indexes, and from the manifest in the first frame. No scene is decompressed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.archive.index import Group
from scannet_prep.archive.reader import Archive
from scannet_prep.archive.shards import find_missing_shards
from scannet_prep.archive.source import ByteSource, open_sources
from scannet_prep.errors import FileError
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry, parse_manifest
from scannet_prep.scene import Split
from scannet_prep.stages.finding import Finding
from scannet_prep.stages.info.class_table import ClassTable, make_class_tables


@dataclass(frozen=True, slots=True)
class ArchiveSplit:
    """What a split of archives holds.

    Attributes:
        name: The split; `none` for scenes of which nobody knows it.
        scene_count: Number of scenes.
        vertex_count: Their vertices; 0 where they were not counted.
        stored_bytes: Their size in the archives.
        size_bytes: Size of their tar bytes, which is that of their files and up to 1 kB more each.
    """

    name: str
    scene_count: int
    vertex_count: int
    stored_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """What is in one archive, or in the shards of one.

    Attributes:
        names: Paths or addresses of the archives.
        kinds: What they were made from; one, unless somebody mixed them.
        size_bytes: Size of the archives.
        content_bytes: Size of the tar bytes.
        file_count: Files in them, without those that describe the archives themselves.
        splits: Those that hold scenes.
        options: How processed scenes were made; empty for others.
        programs: Names and versions of the programs that wrote the archives.
        levels: Compression levels.
        is_complete: Whether processing had come to its end when they were packed.
        scene_ids: The scenes, sorted.
        notice: Under which terms the content is.
        failures: Why scenes are missing that were asked for, by id.
        missing_shards: Shards that are needed to make the set whole.
        unreadable: What could not be read now, and why.
        label_sets: How often the classes of each label set occur, if there is a manifest that counts them.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    size_bytes: int
    content_bytes: int
    file_count: int
    splits: tuple[ArchiveSplit, ...]
    options: dict[str, Any]
    programs: tuple[str, ...]
    levels: tuple[int, ...]
    is_complete: bool
    scene_ids: tuple[str, ...]
    notice: str
    failures: dict[str, str]
    missing_shards: tuple[str, ...]
    unreadable: tuple[Finding, ...]
    label_sets: dict[str, ClassTable]

    @property
    def scene_count(self) -> int:
        """Number of scenes."""
        return sum(item.scene_count for item in self.splits)

    @property
    def vertex_count(self) -> int:
        """Vertices of all scenes; 0 where they were not counted."""
        return sum(item.vertex_count for item in self.splits)

    @property
    def ratio(self) -> float:
        """Size of the archives as a part of that of their tar bytes."""
        return self.size_bytes / self.content_bytes if self.content_bytes else 1.0

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "path": self.names[0],
            "paths": list(self.names),
            "kind": "archive",
            "archive_kind": ", ".join(self.kinds),
            "scenes": self.scene_count,
            "vertices": self.vertex_count,
            "files": self.file_count,
            "size_bytes": self.size_bytes,
            "content_bytes": self.content_bytes,
            "ratio": self.ratio,
            "splits": {
                item.name: {
                    "scenes": item.scene_count,
                    "vertices": item.vertex_count,
                    "stored_bytes": item.stored_bytes,
                    "size_bytes": item.size_bytes,
                }
                for item in self.splits
            },
            "options": self.options,
            "programs": list(self.programs),
            "levels": list(self.levels),
            "complete": self.is_complete,
            "scene_ids": list(self.scene_ids),
            "notice": self.notice,
            "failures": self.failures,
            "missing_shards": list(self.missing_shards),
            "unreadable": self.unreadable,
            "label_sets": self.label_sets,
        }


@dataclass(frozen=True, slots=True)
class ArchiveInfoPlan:
    """The archives whose info is made; they have been opened, which reads the index of each.

    Attributes:
        archives: One or several.
    """

    archives: tuple[Archive, ...]


def plan_archives(archives: Sequence[str | Path | ByteSource], *, certificates: bool | Path = True) -> ArchiveInfoPlan:
    """Open the archives.

    Args:
        archives: Paths, addresses, or objects that read the bytes.
        certificates: Of addresses, whom to trust: True for the system's authorities, a file with others, False to
            accept any certificate.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: One is truncated, damaged at its end, or was written by something else.
        UsageError: The same archive is named twice, or it is no address.
        TransferError: One is on a web server, which does not give it.
    """
    return ArchiveInfoPlan(tuple(map(Archive, open_sources(archives, certificates=certificates))))


def run_archives(plan: ArchiveInfoPlan) -> ArchiveInfo:
    """Make the info.

    Raises:
        TransferError: A web server does not give an archive any more.
    """
    indexes = [archive.index for archive in plan.archives]
    scenes = [scene for index in indexes for scene in index.scenes]
    heads = [index.head for index in indexes]
    names = tuple(archive.name for archive in plan.archives)
    entries, unreadable = _read_manifests(plan.archives)
    held = {scene.scene_id for scene in scenes}
    annotated = [entry for name, entry in entries.items() if name in held and entry.split is not Split.TEST]
    for archive in plan.archives:
        archive.close()
    groups = [group for index in indexes for group in index.groups]
    return ArchiveInfo(
        names=names,
        kinds=tuple(sorted({str(head.kind) for head in heads})),
        size_bytes=sum(archive.size_bytes for archive in plan.archives),
        content_bytes=sum(group.size_bytes for group in groups),
        file_count=sum(len(group.members) for group in groups) - len(indexes),
        splits=tuple(_summarize(scenes)),
        options=dict(heads[0].options),
        programs=tuple(sorted({head.program for head in heads})),
        levels=tuple(sorted({head.level for head in heads})),
        is_complete=all(head.is_complete for head in heads),
        scene_ids=tuple(sorted(held)),
        notice=heads[0].notice,
        failures={name: text for index in indexes for name, text in index.failures.items() if name not in held},
        missing_shards=find_missing_shards(names),
        unreadable=unreadable,
        label_sets=make_class_tables(annotated) if entries else {},
    )


def _summarize(scenes: list[Group]) -> Iterator[ArchiveSplit]:
    known = {str(split) for split in Split}
    for name in (*map(str, Split), "none"):
        members = [scene for scene in scenes if (scene.split if scene.split in known else "none") == name]
        if members:
            yield ArchiveSplit(
                name,
                len(members),
                sum(scene.vertex_count for scene in members),
                sum(scene.stored_bytes for scene in members),
                sum(scene.size_bytes for scene in members),
            )


def _read_manifests(archives: Sequence[Archive]) -> tuple[dict[str, SceneEntry], tuple[Finding, ...]]:
    """Read the manifests; those of shards name all scenes, and are the same."""
    entries: dict[str, SceneEntry] = {}
    faults = []
    for archive in archives:
        try:
            manifest = _read_manifest(archive)
        except FileError as error:
            faults.append(Finding.from_exception(error, archive.name, ""))
        else:
            entries |= {} if manifest is None else manifest.scenes
    return entries, tuple(faults)


def _read_manifest(archive: Archive) -> Manifest | None:
    files = archive.index.files
    member = files.find(MANIFEST_NAME)
    if member is None:
        return None
    return parse_manifest(bytes(archive.read_member(files, member)), f"{archive.name}: {MANIFEST_NAME}")
