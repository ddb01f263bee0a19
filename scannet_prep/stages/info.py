"""Summarize a raw tree, a processed folder, extracted frames, or archives.

processed folder   its manifest; without one, its files
raw tree           the sizes of its files, and the headers of its meshes
extracted frames   the records of the scenes
archives           their indexes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.layout import Head
from scannet_prep.archive.opened import Archive, open_archives
from scannet_prep.archive.shards import find_missing_shards
from scannet_prep.base.findings import Finding, Findings
from scannet_prep.base.progress import Progress
from scannet_prep.frames.options import FrameOptions
from scannet_prep.frames.record import iter_records, read_record
from scannet_prep.processed.folder import find_state
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.check import read_raw_file
from scannet_prep.raw.tree import (
    RawScene,
    find_raw_scenes,
    find_shared_files,
    find_strangers,
    has_segmentation_files,
)
from scannet_prep.release.files import MESH
from scannet_prep.release.irregularities import WarningSummary, summarize_warnings
from scannet_prep.release.splits import count_by_split, find_official_split
from scannet_prep.source import Place, SourceKind, identify


@dataclass(frozen=True, slots=True)
class Info:
    """The summary of a place.

    Attributes:
        paths: The folder, or the archives: paths or addresses.
        kind: `raw`, `processed`, `frames` or `archive`.
        splits: For each split, for `none` (scenes of no known split) and for `all`: the number of
            `scenes` and `vertices`, and `size_bytes`; for archives also `stored_bytes`. Splits
            without scenes are omitted. Extracted frames have `frames` instead of `vertices`.
        scene_ids: The scenes, sorted.
        head: The description in the first archive: source, program and terms.
        program: The program that wrote the manifest or the archive; empty if it is not recorded.
        is_complete: Whether a processed folder may be used; None without a manifest.
        options: The options that the scenes were processed with, or their frames extracted; None
            for raw scenes.
        computed_segments: The number of scenes whose segments are computed; None for archives,
            whose index does not record it, and for raw scenes.
        failures: Why selected scenes are missing, by scene id.
        warnings: The oddities of the raw files of processed scenes, each once.
        shared_files: For a raw tree, the size in bytes of each file in `tasks/`, by name.
        left_out: Names of folders that lie beside those of raw scenes and are not scene ids.
        missing_shards: The shards that are missing from the set of the archives.
        size_bytes: Size of the archives.
        unreadable: Errors of files that could not be read, and the faults for which a processed
            folder as a whole cannot be used.
    """

    paths: tuple[str, ...]
    kind: str
    splits: dict[str, dict[str, int]] = field(hash=False)
    scene_ids: tuple[str, ...]
    head: Head | None = None
    program: str = ""
    is_complete: bool | None = None
    options: ProcessOptions | FrameOptions | None = None
    computed_segments: int | None = None
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
    """Summarize a place.

    Args:
        places: A raw tree or a processed folder; or an archive, or all shards of one: paths,
            addresses, or objects that read the bytes.
        certificates: Certificate authorities to trust for servers; see `RangeSource`.
        progress: Advanced by each raw scene.

    Raises:
        MissingFileError: It is none of these.
        ArchiveError: An archive is truncated, is damaged at its end, or is of another program.
        FileError: It cannot be read.
        UsageError: There are several folders, an archive is named twice, or an address is invalid.
        TransferError: An archive on a web server cannot be read.
    """
    kind, folder = identify(places, may_be_frames=True)
    if folder is None:
        return _summarize_archives(open_archives(places, certificates=certificates))
    if kind is SourceKind.PROCESSED:
        return _summarize_processed_folder(folder)
    if kind is SourceKind.FRAMES:
        return _summarize_frames(folder)
    return _summarize_raw_tree(folder, progress or Progress())


def _summarize_archives(archives: Sequence[Archive]) -> Info:
    """Summarize archives from their indexes."""
    head = archives[0].index.head
    names = tuple(archive.name for archive in archives)
    scenes = {}
    failures: dict[str, str] = {}
    for archive in archives:
        failures |= archive.index.failures
        for scene in archive.index.scenes:
            scenes[scene.scene_id] = scene
    numbers = []
    for scene in scenes.values():
        counts = {
            "vertices": scene.vertex_count,
            "stored_bytes": scene.stored_bytes,
            "size_bytes": scene.size_bytes,
        }
        numbers.append((scene.split, counts))
    return Info(
        paths=names,
        kind="archive",
        splits=count_by_split(numbers),
        scene_ids=tuple(sorted(scenes)),
        head=head,
        program=head.program,
        options=head.options,
        failures={name: reason for name, reason in failures.items() if name not in scenes},
        missing_shards=find_missing_shards(names),
        size_bytes=sum(archive.source.size_bytes for archive in archives),
    )


def _summarize_processed_folder(path: Path) -> Info:
    """Summarize a processed folder from its manifest; without one, from its files."""
    state = find_state(path)
    manifest = state.manifest
    numbers = []
    warnings = []
    for scene_id, entry in manifest.scenes.items():
        counts = {"vertices": entry.vertex_count, "size_bytes": entry.size_bytes}
        numbers.append((entry.split, counts))
        warnings += [(scene_id, warning) for warning in entry.warnings]

    program = ""
    is_complete = None
    if state.has_manifest:
        program = f"scannet-prep {manifest.program_version}"
        is_complete = not state.faults
    return Info(
        paths=(str(path),),
        kind="processed",
        splits=count_by_split(numbers),
        scene_ids=tuple(manifest.scenes),
        program=program,
        is_complete=is_complete,
        options=manifest.options if manifest.scenes else None,
        computed_segments=sum(
            entry.segments_source == "computed" for entry in manifest.scenes.values()
        ),
        failures={name: str(failure) for name, failure in manifest.failures.items()},
        warnings=tuple(summarize_warnings(warnings)),
        unreadable=tuple(Finding.from_exception(fault, path) for fault in state.faults),
    )


def _summarize_frames(path: Path) -> Info:
    """Summarize extracted frames from the records of their scenes."""
    numbers = []
    findings = Findings()
    options = None
    for _, record_path in iter_records(path):
        record = findings.attempt(record_path, read_record, record_path)
        if record is not None:
            counts = {"frames": len(record.frames), "size_bytes": record.size_bytes}
            numbers.append((record.split, counts))
            options = options or record.options
    return Info(
        paths=(str(path),),
        kind="frames",
        splits=count_by_split(numbers),
        scene_ids=tuple(scene_id for scene_id, _ in iter_records(path)),
        options=options,
        unreadable=tuple(findings.found),
    )


def _summarize_raw_tree(path: Path, progress: Progress) -> Info:
    """Summarize a raw tree from the sizes of its files and the headers of its meshes."""
    raw_scenes = find_raw_scenes(path, may_be_empty=True)
    needs_mesh = has_segmentation_files(raw_scenes.values())
    scenes: dict[str, dict[str, int]] = {}
    unreadable: list[Finding] = []
    with progress.work("info", len(raw_scenes), "scenes"):
        for name, scene in raw_scenes.items():
            findings = Findings(name)
            counts = _measure_raw_scene(scene, findings, needs_mesh=needs_mesh)
            if counts is not None:
                scenes[name] = counts
            unreadable += findings.found
            progress.advance()
    numbers = [(find_official_split(name), counts) for name, counts in scenes.items()]
    shared_files = {file.name: file.stat().st_size for file in find_shared_files(path).values()}
    return Info(
        paths=(str(path),),
        kind="raw",
        splits=count_by_split(numbers),
        scene_ids=tuple(scenes),
        shared_files=shared_files,
        left_out=tuple(Path(stranger.subject).name for stranger in find_strangers(path)),
        unreadable=tuple(unreadable),
    )


def _measure_raw_scene(
    scene: RawScene, findings: Findings, *, needs_mesh: bool
) -> dict[str, int] | None:
    """Count the vertices and bytes of a raw scene; None if its folder cannot be read."""
    if scene.problem:
        findings.error(scene.directory, scene.problem)
        return None
    vertex_count = 0
    if needs_mesh:
        mesh_path = scene.path(MESH)
        mesh = findings.attempt(mesh_path, read_raw_file, MESH, mesh_path, scene.scene_id)
        if mesh is not None:
            vertex_count = mesh.vertex_count
    size_bytes = findings.attempt(scene.directory, _add_file_sizes, scene.directory)
    if size_bytes is None:
        return None
    return {"vertices": vertex_count, "size_bytes": size_bytes}


def _add_file_sizes(folder: Path) -> int:
    """Return the size of all files in a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
