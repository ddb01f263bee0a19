"""Tells what is in a raw or a processed tree, or in archives.

Of a processed tree, what the manifest says, or the files where there is none. Of a raw one, sizes, and vertices by the
headers of the meshes. Of archives, what their indexes say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.layout import ArchiveKind, Head
from scannet_prep.archive.reader import open_archives
from scannet_prep.archive.source import Place, find_missing_shards
from scannet_prep.base.progress import Progress
from scannet_prep.processed.folder import find_state
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.layout import (
    RawScene,
    find_raw_scenes,
    find_shared_files,
    find_strangers,
    has_segmentation_files,
)
from scannet_prep.raw.mesh import count_elements
from scannet_prep.release.files import MESH
from scannet_prep.release.scene import Split
from scannet_prep.release.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.release.splits import find_official_split
from scannet_prep.stages.finding import Finding, Findings
from scannet_prep.tree import find_folder, identify_tree


@dataclass(frozen=True, slots=True)
class Info:
    """What is in a place.

    Attributes:
        paths: The tree, or the archives: paths or addresses.
        kind: `raw`, `processed` or `archive`.
        splits: By split (`none` where nobody knows it, `all` for the sum) how many `scenes` and `vertices`, and their
            `size_bytes`; in archives also their `stored_bytes`.
        scene_ids: The scenes, sorted.
        head: What the first of the archives says of itself: what it was made from, by which program, the terms.
        program: What wrote the manifest or the archive; empty where nothing says so.
        is_complete: Whether a processed tree may be used; None where no manifest says so.
        options: The options that processed scenes were made with; None for raw ones.
        failures: Why scenes are missing that were asked for, by id.
        warnings: What was odd about the raw files of processed scenes, each oddity once.
        shared_files: Of a raw tree, the sizes in bytes of the files in `tasks/`, by name.
        left_out: Folders beside those of raw scenes whose names are not scene ids.
        missing_shards: Shards that are needed to make the set of the archives whole.
        size_bytes: Size of the archives.
        unreadable: What could not be read, and why; and why a processed tree as a whole must not be used.
    """

    paths: tuple[str, ...]
    kind: str
    splits: dict[str, dict[str, int]] = field(hash=False)
    scene_ids: tuple[str, ...]
    head: Head | None = None
    program: str = ""
    is_complete: bool | None = None
    options: ProcessOptions | None = None
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)
    warnings: tuple[WarningSummary, ...] = ()
    shared_files: Mapping[str, int] = field(default_factory=dict, hash=False)
    left_out: tuple[str, ...] = ()
    missing_shards: tuple[str, ...] = ()
    size_bytes: int = 0
    unreadable: tuple[Finding, ...] = ()


def run(
    places: Sequence[Place], *, certificates: bool | Path = True, progress: Progress | None = None
) -> Info:
    """Find out what is there.

    Args:
        places: A raw or a processed tree; or an archive, or several that count as the shards of one: paths, addresses,
            or objects that read the bytes.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.
        progress: Told of every raw scene.

    Raises:
        MissingFileError: It is neither a raw nor a processed tree, nor an archive.
        ArchiveError: An archive is truncated, damaged at its end, or was written by something else.
        FileError: It cannot be looked into.
        UsageError: Several folders, the same archive twice, or not an address.
        TransferError: An archive is on a web server, which does not give it.
    """
    if (path := find_folder(places)) is None:
        return _read_archives(places, certificates)
    if identify_tree(path) is ArchiveKind.PROCESSED:
        return _read_processed(path)
    return _read_raw(path, progress or Progress())


def _read_archives(places: Sequence[Place], certificates: bool | Path) -> Info:
    opened = open_archives(places, certificates=certificates)
    names, head = tuple(archive.name for archive in opened), opened[0].index.head
    scenes = {scene.scene_id: scene for archive in opened for scene in archive.index.scenes}
    failures = {
        name: text
        for archive in opened
        for name, text in archive.index.failures.items()
        if name not in scenes
    }
    return Info(
        paths=names,
        kind="archive",
        splits=count_by_split(
            (
                it.split,
                {
                    "vertices": it.vertex_count,
                    "stored_bytes": it.stored_bytes,
                    "size_bytes": it.size_bytes,
                },
            )
            for it in scenes.values()
        ),
        scene_ids=tuple(sorted(scenes)),
        head=head,
        program=head.program,
        options=head.options,
        failures=failures,
        missing_shards=find_missing_shards(names),
        size_bytes=sum(archive.source.size_bytes for archive in opened),
    )


def _read_processed(path: Path) -> Info:
    state = find_state(path)
    manifest, entries = state.manifest, state.manifest.scenes
    found = ((name, warning) for name, entry in entries.items() for warning in entry.warnings)
    return Info(
        paths=(str(path),),
        kind="processed",
        splits=count_by_split(
            (entry.split, {"vertices": entry.vertex_count, "size_bytes": entry.size_bytes})
            for entry in entries.values()
        ),
        scene_ids=tuple(entries),
        program=f"scannet-prep {manifest.program_version}" if state.has_manifest else "",
        is_complete=not state.faults if state.has_manifest else None,
        options=manifest.options if entries else None,
        failures={name: failure.message for name, failure in manifest.failures.items()},
        warnings=tuple(summarize_warnings(found)),
        unreadable=tuple(Finding.from_exception(fault, path) for fault in state.faults),
    )


def _read_raw(path: Path, progress: Progress) -> Info:
    scenes: dict[str, dict[str, int]] = {}
    unreadable: list[Finding] = []
    raw_scenes = find_raw_scenes(path, may_be_empty=True)
    needs_mesh = has_segmentation_files(raw_scenes.values())
    with progress.work("info", len(raw_scenes), "scenes"):
        for name, scene in raw_scenes.items():
            findings = Findings(name)
            if scene.problem:
                findings.error(scene.directory, scene.problem)
            else:
                numbers = findings.attempt(
                    scene.directory, _count, scene, findings, needs_mesh=needs_mesh
                )
                if numbers is not None:
                    scenes[name] = numbers
            unreadable += findings.found
            progress.advance()
    return Info(
        paths=(str(path),),
        kind="raw",
        splits=count_by_split(
            (find_official_split(name), numbers) for name, numbers in scenes.items()
        ),
        scene_ids=tuple(scenes),
        shared_files={
            shared.name: shared.stat().st_size for shared in find_shared_files(path).values()
        },
        left_out=tuple(stranger.name for stranger in find_strangers(raw_scenes)),
        unreadable=tuple(unreadable),
    )


def _count(scene: RawScene, findings: Findings, *, needs_mesh: bool) -> dict[str, int]:
    """Count the vertices and bytes of one raw scene."""
    vertices = 0
    if needs_mesh:
        vertices, _ = findings.attempt(scene.path(MESH), count_elements, scene.path(MESH)) or (0, 0)
    size_bytes = sum(path.stat().st_size for path in scene.directory.iterdir() if path.is_file())
    return {"vertices": vertices, "size_bytes": size_bytes}


def count_by_split(
    scenes: Iterable[tuple[str | None, Mapping[str, int]]],
) -> dict[str, dict[str, int]]:
    """Add up the numbers of scenes.

    Args:
        scenes: Split and numbers of each; None for a scene of no split.

    Returns:
        By split, `none` for no split, and `all` together: number of scenes, and the sum of each number.
    """
    found: dict[str, Counter[str]] = {name: Counter() for name in (*map(str, Split), "none", "all")}
    for split, numbers in scenes:
        for name in (str(split or "none"), "all"):
            found[name].update({"scenes": 1, **numbers})
    return {name: dict(row) for name, row in found.items() if row}
