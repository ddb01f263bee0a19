"""Check a raw tree, a processed folder, an export, extracted frames, or archives.

    folder     plan --> tasks --> check_scene for each task, in worker processes
    archives   read each archive once, from its beginning to its end
    both       compare the scenes with the official splits

A fault in a file becomes a finding and does not stop the check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.archive.archive_set import ArchiveSet
from scannet_prep.archive.byte_source import FileSource, open_bytes
from scannet_prep.archive.checksum import check_checksum
from scannet_prep.archive.groups import GroupReader
from scannet_prep.archive.threads import Threads
from scannet_prep.base.findings import Finding, Findings, sort_findings
from scannet_prep.base.progress import Progress
from scannet_prep.errors import UsageError
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.source import Place, SourceKind, identify
from scannet_prep.stages.scene_checks import Inspection
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.verify import export, frames, processed, raw

_HINT_DAMAGED = (
    "copy the archive again, or pack it again: scannet-prep pack --force; "
    "to recover the other scenes: scannet-prep unpack"
)
_HINT_WARNING = (
    "the scenes are intact; copy the archive again, or pack it again: scannet-prep pack --force"
)
# Each module has `plan`, which finds the scenes to check, and `check_scene`.
_CHECKS: dict[str, Any] = {
    SourceKind.RAW: raw,
    SourceKind.PROCESSED: processed,
    SourceKind.EXPORT: export,
    SourceKind.FRAMES: frames,
}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a check.

    Attributes:
        paths: The folder, or the archives: paths or addresses.
        kind: `raw`, `processed`, `export`, `frames` or `archive`.
        scenes: Number of scenes that were checked.
        shared_files: Number of checked files that belong to no scene: those in `tasks/` of a raw
            tree.
        vertices: Vertices of the intact scenes; 0 if they were not counted.
        size_bytes: Size of the files that were read, or of all archives.
        splits: For each split, how many of its official scenes are `present`, and how many there
            are (`official`).
        whole_scenes: The checked scenes without errors, sorted.
        damaged_scenes: The scenes with errors, if their names are known, sorted.
        findings: Errors first, then by scene and file.
        computed_segments: Number of checked scenes whose segments are computed; only for a
            processed folder.
    """

    paths: tuple[str, ...]
    kind: str
    scenes: int
    shared_files: int
    vertices: int
    size_bytes: int
    splits: Mapping[str, Mapping[str, int]] = field(hash=False)
    whole_scenes: tuple[str, ...]
    damaged_scenes: tuple[str, ...]
    findings: tuple[Finding, ...]
    computed_segments: int = 0

    @property
    def to_download(self) -> tuple[list[str], list[str]]:
        """The file types and scenes of a raw tree to download again.

        Scenes are empty if an error may concern any scene.
        """
        types, scenes = raw.find_damaged_types(self.findings)
        # An empty scene id stands for an error that belongs to no single scene.
        if "" in scenes:
            return types, []
        return types, sorted(scenes)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors, not notes."""
        return tuple(finding for finding in self.findings if finding.is_error)


@dataclass(slots=True)
class _Checked:
    """The data that a check has collected about a place.

    Attributes:
        paths: The folder, or the archives.
        kind: As in the report.
        vertices: The number of vertices of each checked scene; 0 if it is damaged.
        present: The split of each scene of the place, selected or not.
        size_bytes: As in the report.
        shared_files: As in the report.
        computed_segments: As in the report.
    """

    paths: tuple[str, ...]
    kind: str
    vertices: dict[str, int]
    present: Mapping[Any, str | None]
    size_bytes: int
    shared_files: int = 0
    computed_segments: int = 0


def run(
    places: Sequence[Place],
    *,
    selection: Selection | None = None,
    must_be_complete: bool = False,
    certificates: bool | Path = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a place. A fault in a file becomes a finding and does not stop the check.

    Args:
        places: A raw tree, a processed folder, an export or extracted frames; or an archive, or
            shards of one: paths, addresses, or objects that read the bytes.
        selection: The scenes to check; all by default.
        must_be_complete: Whether a missing scene of the official lists is an error.
        certificates: Certificate authorities to trust for servers; see `RangeSource`.
        jobs: Number of worker processes, or of threads for archives.
        progress: Advanced by each scene, or by the tar bytes of archives.

    Raises:
        MissingFileError: There is no such place.
        FileError: The place cannot be read.
        UsageError: There are several folders; `must_be_complete` is combined with a selection of
            single scenes; or there are no scenes of the selected splits.
        UnknownSceneError: The selection contradicts itself.
        WorkerDiedError: Worker processes cannot be started.
        ScanNetPrepError: For archives, any error of `open_bytes` and `ArchiveSet`.
    """
    selection = selection or Selection()
    if must_be_complete and not selection.has_whole_splits:
        raise UsageError(
            "a selection of single scenes cannot be complete",
            "leave out --complete, or leave out --scenes and --limit",
        )

    inspection = Inspection("verify", selection, jobs, progress or Progress())
    findings = inspection.findings
    kind, folder = identify(places, may_be_export=True, may_be_frames=True)
    if folder is not None:
        checked = _check_folder(kind, folder, inspection)
    else:
        sources = [open_bytes(place, certificates=certificates) for place in places]
        archives = ArchiveSet(sources, selection.wants, selection.limit)
        checked = _check_archives(archives, inspection)

    root = checked.paths[0]
    splits = _compare_with_lists(
        root, checked.present, inspection, must_be_complete=must_be_complete
    )
    damaged = {finding.scene_id for finding in findings.found if finding.is_error}
    has_checked = checked.vertices or checked.shared_files
    if not has_checked and not damaged:
        # A check of nothing must not report success.
        names = ", ".join(splits)
        raise UsageError(f"{root}: holds no scenes of the splits {names}", "check --splits")
    return VerifyReport(
        paths=checked.paths,
        kind=checked.kind,
        scenes=len(checked.vertices),
        shared_files=checked.shared_files,
        vertices=sum(checked.vertices.values()),
        size_bytes=checked.size_bytes,
        splits=splits,
        whole_scenes=tuple(sorted(checked.vertices.keys() - damaged)),
        damaged_scenes=tuple(sorted(damaged - {""})),
        findings=sort_findings(findings.found),
        computed_segments=checked.computed_segments,
    )


def _check_folder(kind: SourceKind, folder: Path, inspection: Inspection) -> _Checked:
    """Check a raw tree, a processed folder, an export or extracted frames."""
    check = _CHECKS[kind]
    tasks, present, context = check.plan(folder, inspection)
    results = inspection.check_scenes(check.check_scene, tasks, context)
    vertices = {}
    size_bytes = 0
    for task in tasks:
        # A scene whose check raised an exception has no result.
        vertex_count, scene_bytes = results.get(task.scene_id, (0, 0))
        vertices[str(task.scene_id)] = vertex_count
        size_bytes += scene_bytes

    shared_files = 0
    if kind is SourceKind.RAW and inspection.selection.has_all:
        shared_files, shared_bytes = raw.check_shared_files(folder, inspection)
        size_bytes += shared_bytes
    return _Checked(
        paths=(str(folder),),
        kind=str(kind),
        vertices=vertices,
        present=present,
        size_bytes=size_bytes,
        shared_files=shared_files,
        computed_segments=processed.count_computed(tasks) if kind is SourceKind.PROCESSED else 0,
    )


def _check_archives(archives: ArchiveSet, inspection: Inspection) -> _Checked:
    """Check archives, and report the scenes that are missing.

    Raises:
        ScanNetPrepError: Any error of `GroupReader.read`.
    """
    selection = inspection.selection
    findings = inspection.findings
    vertices: dict[str, int] = {}
    expected: set[str] = set(selection.scene_ids or ())
    with inspection.progress.work(inspection.title, archives.size_bytes, "B"):
        for reader in archives.readers:
            vertices |= _check_archive(reader, inspection)
            manifest = findings.attempt(reader.name, reader.read_manifest)
            # The manifest of a truncated archive names the scenes that are lost. If a shard is
            # missing, the manifest also names that shard's scenes, which were not truncated.
            is_truncated = reader.index is None and not archives.missing_shards
            if manifest and is_truncated:
                for scene_id, entry in manifest.scenes.items():
                    if selection.wants(scene_id, entry.split):
                        expected.add(scene_id)
    if selection.limit is None:
        _report_lost_scenes(archives, expected - vertices.keys(), findings)
    if selection.has_all:
        _check_checksums(archives, findings)
    return _Checked(
        paths=tuple(archives.names),
        kind="archive",
        vertices=vertices,
        present=archives.held,
        size_bytes=sum(reader.source.size_bytes for reader in archives.readers),
    )


def _check_archive(reader: GroupReader, inspection: Inspection) -> dict[str, int]:
    """Check one archive.

    Returns:
        The number of vertices of each checked scene; 0 if it is damaged.
    """
    findings = inspection.findings
    vertices = {}
    # Reading checks each scene; there is nothing else to do with it.
    threads = Threads(inspection.jobs, inspection.progress)
    for group, problem in reader.read(lambda *_: None, threads):
        if problem:
            vertices[group.scene_id] = 0
            message = f"is damaged (bytes {group.offset:,} to {group.end:,}): {problem}"
            findings.error(reader.name, message, _HINT_DAMAGED, scene_id=group.scene_id)
        else:
            vertices[group.scene_id] = group.vertex_count
    for problem in reader.problems:
        findings.error(reader.name, problem, _HINT_DAMAGED)
    for warning in reader.warnings:
        findings.note(reader.name, warning, _HINT_WARNING)
    return vertices


def _report_lost_scenes(archives: ArchiveSet, scene_ids: set[str], findings: Findings) -> None:
    """Report the scenes that archives should hold and do not."""
    message = "is not in the intact part of the archive, or not in the selected splits"
    hint = _HINT_DAMAGED
    if archives.has_indexes:
        message = "is not here, or not in the selected splits"
        hint = ""
    for scene_id in sorted(scene_ids):
        findings.error(archives.names[0], message, hint, scene_id=scene_id)


def _check_checksums(archives: ArchiveSet, findings: Findings) -> None:
    """Compare archives on a disk with the checksum files beside them, if these exist."""
    for reader in archives.readers:
        if isinstance(reader.source, FileSource):
            path = Path(reader.name)
            findings.attempt(path, check_checksum, path)


def _compare_with_lists(
    path: str,
    present: Mapping[Any, str | None],
    inspection: Inspection,
    *,
    must_be_complete: bool,
) -> dict[str, dict[str, int]]:
    """Report the missing scenes of the official splits, and count those of each split."""
    selection = inspection.selection
    findings = inspection.findings
    already_reported = {finding.scene_id for finding in findings.found if finding.is_error}
    splits = {}
    for split in selection.splits or tuple(Split):
        official = official_scenes(split)
        missing = [scene_id for scene_id in official if present.get(scene_id) != split]
        present_count = len(official) - len(missing)
        splits[str(split)] = {"present": present_count, "official": len(official)}
        if must_be_complete:
            for scene_id in sorted(set(missing) - already_reported):
                findings.error(path, "no such scene", scene_id=scene_id)
        elif selection.has_whole_splits and 0 < present_count < len(official):
            message = f"holds {present_count:,} of the {len(official):,} {split} scenes"
            findings.note(path, message)
    return splits
