"""Checks a raw or a processed tree, an export, or archives.

Every file by itself, files against each other, and the tree against the splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.archive.checksum import check_checksum
from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.archive.source import FileSource, Place
from scannet_prep.base.errors import UsageError
from scannet_prep.base.progress import Progress
from scannet_prep.export import is_export
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.stages.finding import Finding, Findings, look_at_scenes, sort_findings
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.verify import export, processed, raw
from scannet_prep.tree import find_folder, identify_tree

_DAMAGED_HINT = (
    "copy the archive again, or pack it again: scannet-prep pack --force; "
    "the other scenes can be used: scannet-prep unpack recovers them"
)
_WARNING_HINT = (
    "the files here are whole; copy the archive again, or pack it again: scannet-prep pack --force"
)
# What finds what is to be checked of a tree, and checks a scene.
_CHECKS: dict[str, Any] = {ArchiveKind.RAW: raw, ArchiveKind.PROCESSED: processed, "export": export}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a check found.

    Attributes:
        paths: The tree, or the archives: paths or addresses.
        kind: `raw`, `processed`, `export` or `archive`.
        scenes: How many were checked.
        shared_files: Number of checked files that belong to no scene: those in `tasks/` of a raw tree.
        vertices: Of the whole ones; 0 where they were not counted.
        size_bytes: Of the files that were read, or of all archives.
        splits: Of each split, how many of its official scenes are `present`, and how many there are (`official`).
        whole_scenes: Scenes that were checked and have no errors, sorted.
        damaged_scenes: Scenes that have errors, as far as they can be named, sorted.
        findings: Errors first, then by scene and file.
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

    @property
    def to_download(self) -> tuple[list[str], list[str]]:
        """Of a raw tree: the types and the scenes to download again; no scenes if others may be concerned, too."""
        types, scenes = raw.find_damaged_types(self.findings)
        return types, [] if "" in scenes else sorted(scenes)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are wrong, not just worth knowing."""
        return tuple(finding for finding in self.findings if finding.is_error)


def run(
    places: Sequence[Place],
    *,
    selection: Selection | None = None,
    must_be_complete: bool = False,
    against: Path | None = None,
    certificates: bool | Path = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check what is there. Whatever is wrong with a file is a finding, and the check goes on.

    Args:
        places: A raw or a processed tree, or an export; or archives, of which several count as the shards of one:
            paths, addresses, or objects that read the bytes.
        selection: Which scenes; all by default.
        must_be_complete: Whether a scene of the official lists that is not there is an error.
        against: The `scannet.lock` of another copy of a raw tree, to compare with.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.
        jobs: Number of worker processes, or of threads for archives.
        progress: Told of every scene, or of the tar bytes of archives.

    Raises:
        MissingFileError: It is not such a tree.
        FileError: It cannot be looked into.
        UsageError: Several folders; `against`, which is for raw trees; or a part of the scenes that must be complete;
            or there are no scenes of the selected splits.
        UnknownSceneError: The selection contradicts itself.
        WorkerDiedError: Worker processes cannot be started.
        ScanNetPrepError: Of archives, what `ArchiveSet` raises.
    """
    selection, findings, progress = selection or Selection(), Findings(), progress or Progress()
    present: Mapping[Any, str | None]
    if must_be_complete and not selection.has_whole_splits:
        raise UsageError(
            "a part of the scenes cannot be complete",
            "leave out --complete; or leave out --scenes and --limit",
        )
    shared_files = 0
    path, kind = find_folder(places), "archive"
    if path is not None:
        kind = "export" if is_export(path) else str(identify_tree(path))
    if against is not None and kind != ArchiveKind.RAW:
        problem = "is not a raw tree, and only such a tree has digests to compare"
        raise UsageError(
            f"{path or places[0]}: {problem}",
            "scannet-prep report PLACE --against PLACE compares others",
        )
    if path is None:
        archives = ArchiveSet(places, selection.wants, selection.limit, certificates)
        paths = tuple(archives.names)
        checked = _check_archives(archives, selection, findings, jobs, progress)
        if selection == Selection():
            _check_checksums(archives, findings)
        present, size_bytes = (
            archives.held,
            sum(reader.source.size_bytes for reader in archives.readers),
        )
    else:
        paths, check = (str(path),), _CHECKS[kind]
        tasks, present, context = check.plan(
            path, selection, findings, *([] if against is None else [against])
        )
        looked = look_at_scenes(
            check.look, tasks, context, findings, title="verify", jobs=jobs, progress=progress
        )
        numbers = {str(task.scene_id): looked.get(task.scene_id, (0, 0)) for task in tasks}
        checked = {name: count for name, (count, _) in numbers.items()}
        size_bytes = sum(size for _, size in numbers.values())
        if kind == ArchiveKind.RAW and selection == Selection():
            shared_files, shared_bytes = raw.check_shared_files(path, findings, against, progress)
            size_bytes += shared_bytes
    splits = _compare_with_lists(
        paths[0], selection, present, findings, must_be_complete=must_be_complete
    )
    damaged = {finding.scene_id for finding in findings.found if finding.is_error}
    if not (checked or damaged or shared_files):
        # To check nothing and find nothing wrong would not be a check.
        raise UsageError(
            f"{paths[0]}: holds no scenes of the splits {', '.join(splits)}", "check --splits"
        )
    return VerifyReport(
        paths=paths,
        kind=kind,
        scenes=len(checked),
        shared_files=shared_files,
        vertices=sum(checked.values()),
        size_bytes=size_bytes,
        splits=splits,
        whole_scenes=tuple(sorted(checked.keys() - damaged)),
        damaged_scenes=tuple(sorted(damaged - {""})),
        findings=sort_findings(findings.found),
    )


def _check_archives(
    archives: ArchiveSet, selection: Selection, findings: Findings, jobs: int, progress: Progress
) -> dict[str, int]:
    """Check archives, each once. Whatever is wrong with their content is a finding, and the check goes on.

    Returns:
        The scenes that were checked, and how many vertices each has; 0 for those that are damaged.

    Raises:
        ScanNetPrepError: What `GroupReader.read` raises.
    """
    checked, expected = dict[str, int](), set[str](selection.scene_ids or ())
    with progress.work("verify", archives.size_bytes, "B"):
        for reader in archives.readers:
            for group, problem in reader.read(lambda *_: None, jobs, progress):
                checked[group.scene_id] = 0 if problem else group.vertex_count
                if problem:
                    message = f"is damaged (bytes {group.offset:,} to {group.end:,}): {problem}"
                    findings.error(reader.name, message, _DAMAGED_HINT, scene_id=group.scene_id)
            for problem in reader.problems:
                findings.error(reader.name, problem, _DAMAGED_HINT)
            for warning in reader.warnings:
                findings.note(reader.name, warning, _WARNING_HINT)
            manifest = findings.attempt(Path(reader.name), reader.read_manifest)
            # Of an archive that is cut off, the manifest tells what is lost.
            if manifest and not (reader.index or archives.missing_shards):
                expected |= {
                    name
                    for name, entry in manifest.scenes.items()
                    if selection.wants(name, entry.split)
                }
    message, hint = (
        "is not in what is whole of the archive, or is of another split than was asked for",
        _DAMAGED_HINT,
    )
    if archives.has_indexes:
        message, hint = "is not here, or not in the splits that were asked for", ""
    for scene_id in sorted(expected - checked.keys()) if selection.limit is None else ():
        findings.error(archives.names[0], message, hint, scene_id=scene_id)
    return checked


def _check_checksums(archives: ArchiveSet, findings: Findings) -> None:
    """Compare archives on a disk with the checksum files beside them, where there are any."""
    for reader in archives.readers:
        if isinstance(reader.source, FileSource):
            path = Path(reader.name)
            findings.attempt(path, check_checksum, path)


def _compare_with_lists(
    path: str,
    selection: Selection,
    present: Mapping[Any, str | None],
    findings: Findings,
    *,
    must_be_complete: bool,
) -> dict[str, dict[str, int]]:
    """Tell what is missing of the official splits; gives their numbers."""
    told, splits = {finding.scene_id for finding in findings.found if finding.is_error}, {}
    for split in selection.splits or tuple(Split):
        official = official_scenes(split)
        missing = [name for name in official if present.get(name) != split]
        there = len(official) - len(missing)
        splits[str(split)] = {"present": there, "official": len(official)}
        if must_be_complete:
            for name in sorted(set(missing) - told):
                findings.error(path, "no such scene", scene_id=name)
        elif selection.has_whole_splits and 0 < there < len(official):
            findings.note(path, f"holds {there:,} of the {len(official):,} {split} scenes")
    return splits
